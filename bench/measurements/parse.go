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

// parse parses the output of "symmem bench --json" or "go test -bench" into a table.
func parse(text []byte) (*results.Result, error) {
	if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
		return parseReport(text)
	}
	return parseBenchmarks(string(text))
}

// table collects named values by row.
type table struct {
	columns []string // names, in order of first appearance
	rows    []map[string]any
}

func (t *table) set(name string, value any) {
	if !slices.Contains(t.columns, name) {
		t.columns = append(t.columns, name)
	}
	t.rows[len(t.rows)-1][name] = value
}

// result returns the table, in which missing values are nil.
func (t *table) result() (*results.Result, error) {
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

func parseReport(text []byte) (*results.Result, error) {
	var decoded report.Report
	if err := json.Unmarshal(text, &decoded); err != nil {
		return nil, fmt.Errorf("decoding a report of symmem bench: %w", err)
	}
	t := &table{}
	for i := range decoded.Results {
		r := &decoded.Results[i]
		t.rows = append(t.rows, map[string]any{})
		t.set("name", r.Name)
		for _, name := range slices.Sorted(maps.Keys(r.Params)) {
			t.set(name, toCell(r.Params[name]))
		}
		t.set("ns", r.Median)
		t.set("p10 ns", r.P10)
		t.set("p90 ns", r.P90)
		if r.Baseline != nil {
			t.set(*r.Baseline+", ns", *r.BaselineMedian)
			t.set("ratio", json.Number(strconv.FormatFloat(*r.Ratio, 'f', 2, 64)))
		}
		for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
			t.set(name, r.Figures[name])
		}
	}
	return t.result()
}

// toCell converts a parameter to a table cell, which is a number or a string.
func toCell(value any) any {
	if number, ok := value.(float64); ok {
		return number
	}
	return fmt.Sprint(value)
}

var (
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(-\d+)?\s+\d+\s+(.*)$`)
	valueAndUnit  = regexp.MustCompile(`(\S+)\s+(\S+)`)
)

func parseBenchmarks(text string) (*results.Result, error) {
	t := &table{}
	for _, line := range benchmarkLine.FindAllStringSubmatch(text, -1) {
		t.rows = append(t.rows, map[string]any{})
		t.set("benchmark", line[1])
		for _, pair := range valueAndUnit.FindAllStringSubmatch(line[3], -1) {
			value, unit := pair[1], pair[2]
			if _, err := strconv.ParseFloat(value, 64); err != nil {
				return nil, fmt.Errorf("%s: %q is not a number", line[1], value)
			}
			t.set(unit, json.Number(value))
		}
	}
	return t.result()
}
