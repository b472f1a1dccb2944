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
func parseOutput(text []byte) (*results.Table, error) {
	isJSON := strings.HasPrefix(strings.TrimSpace(string(text)), "{")
	if isJSON {
		return parseReport(text)
	}

	return parseBenchmarks(string(text))
}

// tableBuilder builds a table. Rows may lack cells.
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

// build returns the table. Missing cells are nil.
func (t *tableBuilder) build() (*results.Table, error) {
	if len(t.rows) == 0 {
		return nil, errors.New("the output contains no results")
	}

	table := &results.Table{Columns: t.columns}
	for _, row := range t.rows {
		cells := make([]any, len(t.columns))
		for i, column := range t.columns {
			cells[i] = row[column]
		}

		table.Rows = append(table.Rows, cells)
	}

	return table, nil
}

// parseReport returns a table with a row for each result in a report of "symmem bench --json".
func parseReport(text []byte) (*results.Table, error) {
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
		hasBaseline := r.Baseline != nil
		if hasBaseline {
			ratio := strconv.FormatFloat(*r.Ratio, 'f', 2, 64)
			t.addCell(*r.Baseline+", ns", *r.BaselineMedian)
			t.addCell("ratio", json.Number(ratio))
		}

		for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
			t.addCell(name, r.Figures[name])
		}
	}

	return t.build()
}

// toCell returns numbers unchanged, and other values as text.
func toCell(value any) any {
	number, isNumber := value.(float64)
	if isNumber {
		return number
	}

	return fmt.Sprint(value)
}

var (
	// benchmarkLine matches "BenchmarkAlloc-8  1000  52 ns/op  0 allocs/op". The submatches are
	// "Alloc" and "52 ns/op  0 allocs/op".
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)
	// valueAndUnit matches a pair such as "52 ns/op".
	valueAndUnit = regexp.MustCompile(`(\S+)\s+(\S+)`)
)

// parseBenchmarks returns a table with a row for each benchmark in the output of "go test -bench".
func parseBenchmarks(text string) (*results.Table, error) {
	t := &tableBuilder{}
	for _, line := range benchmarkLine.FindAllStringSubmatch(text, -1) {
		benchmark := line[1]
		values := line[2]
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

	return t.build()
}
