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

// parseOutput parses the output of "symmem bench --json" or "go test -bench".
func parseOutput(text []byte) (*results.Result, error) {
	if strings.HasPrefix(strings.TrimSpace(string(text)), "{") {
		return parseReport(text)
	}
	return parseBenchmarks(string(text))
}

type tableBuilder struct {
	columns []string // names, in order of first appearance
	rows    []map[string]any
}

func (t *tableBuilder) addCell(name string, value any) {
	if !slices.Contains(t.columns, name) {
		t.columns = append(t.columns, name)
	}
	t.rows[len(t.rows)-1][name] = value
}

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

func parseReport(text []byte) (*results.Result, error) {
	var decoded report.Report
	if err := json.Unmarshal(text, &decoded); err != nil {
		return nil, fmt.Errorf("decoding a report of symmem bench: %w", err)
	}
	t := &tableBuilder{}
	for i := range decoded.Results {
		r := &decoded.Results[i]
		t.rows = append(t.rows, map[string]any{})
		t.addCell("name", r.Name)
		for _, name := range slices.Sorted(maps.Keys(r.Params)) {
			t.addCell(name, toCell(r.Params[name]))
		}
		t.addCell("ns", r.Median)
		t.addCell("p10 ns", r.P10)
		t.addCell("p90 ns", r.P90)
		if r.Baseline != nil {
			t.addCell(*r.Baseline+", ns", *r.BaselineMedian)
			t.addCell("ratio", json.Number(strconv.FormatFloat(*r.Ratio, 'f', 2, 64)))
		}
		for _, name := range slices.Sorted(maps.Keys(r.Figures)) {
			t.addCell(name, r.Figures[name])
		}
	}
	return t.result()
}

func toCell(value any) any {
	if number, isNumber := value.(float64); isNumber {
		return number
	}
	return fmt.Sprint(value)
}

var (
	benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(\S+?)(-\d+)?\s+\d+\s+(.*)$`)
	valueAndUnit  = regexp.MustCompile(`(\S+)\s+(\S+)`)
)

func parseBenchmarks(text string) (*results.Result, error) {
	t := &tableBuilder{}
	for _, line := range benchmarkLine.FindAllStringSubmatch(text, -1) {
		t.rows = append(t.rows, map[string]any{})
		t.addCell("benchmark", line[1])
		for _, pair := range valueAndUnit.FindAllStringSubmatch(line[3], -1) {
			value, unit := pair[1], pair[2]
			if _, err := strconv.ParseFloat(value, 64); err != nil {
				return nil, fmt.Errorf("%s: %q is not a number", line[1], value)
			}
			t.addCell(unit, json.Number(value))
		}
	}
	return t.result()
}
