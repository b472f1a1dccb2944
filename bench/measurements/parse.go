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

// parseOutput converts the output of "symmem bench --json" or "go test -bench" to a table.
func parseOutput(text []byte) (*results.Result, error) {
	isJSON := strings.HasPrefix(strings.TrimSpace(string(text)), "{")
	if isJSON {
		return parseReport(text)
	}

	return parseBenchmarks(string(text))
}

// tableBuilder builds a table whose rows may have different columns.
type tableBuilder struct {
	columns []string         // names, in order of the first use
	rows    []map[string]any // cells by column name
}

func (t *tableBuilder) startRow() {
	t.rows = append(t.rows, map[string]any{})
}

// addCell adds a cell to the last row.
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

// parseReport makes a row of each result in a report of "symmem bench --json".
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
		hasBaseline := r.Baseline != nil // BaselineMedian and Ratio are set together with it.
		if hasBaseline {
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

// toCell converts values other than numbers to text.
func toCell(value any) any {
	number, isNumber := value.(float64)
	if isNumber {
		return number
	}

	return fmt.Sprint(value)
}

var (
	// benchmarkLine has the submatches "Alloc", "-8" and "52 ns/op  0 allocs/op" in the line
	// "BenchmarkAlloc-8  1000  52 ns/op  0 allocs/op".
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(-\d+)?\s+\d+\s+(.*)$`)
	// valueAndUnit matches a pair such as "52 ns/op".
	valueAndUnit = regexp.MustCompile(`(\S+)\s+(\S+)`)
)

// parseBenchmarks makes a row of each benchmark in the output of "go test -bench".
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
