package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"symmem/bench/report"
	"symmem/bench/results"
)

// parseOutput makes a table of the output of "symmem bench --json" or "go test -bench". Suppose
// that the second command prints these lines:
//
//	BenchmarkAlloc-8  1000  52 ns/op  0 allocs/op
//	BenchmarkScope-8  2000  31 ns/op
//
// The table has the columns benchmark, ns/op and allocs/op. Its second row has no number of
// allocations, so the last cell is nil.
func parseOutput(text []byte) (*results.Result, error) {
	isJSON := strings.HasPrefix(strings.TrimSpace(string(text)), "{")
	if isJSON {
		return parseReport(text)
	}

	return parseBenchmarks(string(text))
}

// tableBuilder builds a table. Each cell is added to the last row, under the name of its column.
type tableBuilder struct {
	columns []string         // names, in the order in which addCell first saw them
	rows    []map[string]any // cells by name of the column
}

// startRow adds an empty row.
func (t *tableBuilder) startRow() {
	t.rows = append(t.rows, map[string]any{})
}

// addCell adds a cell to the last row. It adds the column if it is new.
func (t *tableBuilder) addCell(column string, value any) {
	if !slices.Contains(t.columns, column) {
		t.columns = append(t.columns, column)
	}

	lastRow := t.rows[len(t.rows)-1]
	lastRow[column] = value
}

// result returns the table. Missing cells are nil.
func (t *tableBuilder) result() (*results.Result, error) {
	if len(t.rows) == 0 {
		return nil, errors.New("the output contains no results")
	}

	r := &results.Result{Columns: t.columns}
	for _, row := range t.rows {
		cells := make([]any, len(t.columns))
		for i, column := range t.columns {
			cells[i] = row[column]
		}

		r.Rows = append(r.Rows, cells)
	}

	return r, nil
}

// parseReport parses a report of "symmem bench --json". Each result becomes a row.
func parseReport(text []byte) (*results.Result, error) {
	var decoded report.Report
	if err := json.Unmarshal(text, &decoded); err != nil {
		return nil, fmt.Errorf("decoding a report of symmem bench: %w", err)
	}

	t := &tableBuilder{}
	for i := range decoded.Results {
		r := &decoded.Results[i]
		t.startRow()
		t.addCell("name", r.Name)
		for _, param := range slices.Sorted(maps.Keys(r.Params)) {
			t.addCell(param, toCell(r.Params[param]))
		}

		t.addCell("ns", r.Median)
		t.addCell("p10 ns", r.P10)
		t.addCell("p90 ns", r.P90)
		if r.Baseline != nil { // Ratio and BaselineMedian are then not nil either.
			ratio := strconv.FormatFloat(*r.Ratio, 'f', 2, 64)
			t.addCell(*r.Baseline+", ns", *r.BaselineMedian)
			t.addCell("ratio", json.Number(ratio))
		}

		for _, figure := range slices.Sorted(maps.Keys(r.Figures)) {
			t.addCell(figure, r.Figures[figure])
		}
	}

	return t.result()
}

// toCell returns a number unchanged, and other values as text.
func toCell(value any) any {
	number, isNumber := value.(float64)
	if isNumber {
		return number
	}

	return fmt.Sprint(value)
}

var (
	// benchmarkLine matches a line of a benchmark. In the example above, its groups are "Alloc", "-8"
	// and "52 ns/op  0 allocs/op". The 8 is the number of processors, and 1000 that of repetitions.
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(-\d+)?\s+\d+\s+(.*)$`)
	// valueAndUnit matches a value with its unit, such as "52 ns/op".
	valueAndUnit = regexp.MustCompile(`(\S+)\s+(\S+)`)
)

// parseBenchmarks parses the output of "go test -bench". Each benchmark becomes a row.
func parseBenchmarks(text string) (*results.Result, error) {
	t := &tableBuilder{}
	for _, line := range benchmarkLine.FindAllStringSubmatch(text, -1) {
		benchmark := line[1]
		values := line[3]
		t.startRow()
		t.addCell("benchmark", benchmark)
		for _, pair := range valueAndUnit.FindAllStringSubmatch(values, -1) {
			value := pair[1]
			unit := pair[2]
			_, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q is not a number", benchmark, value)
			}

			t.addCell(unit, json.Number(value)) // keeps all digits
		}
	}

	return t.result()
}
