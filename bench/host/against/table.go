package main

import (
	"fmt"
	"io"

	"symmem/bench/report"
	"symmem/bench/results"
)

type table struct {
	names []string          // in order of appearance
	times map[string]*times // by name
}

// times holds a benchmark's nanoseconds: of the old program at index 0, of the new one at index 1.
type times [2][]float64

func newTable() *table { return &table{times: map[string]*times{}} }

// add requires index 0 for a result of the old program and index 1 for the new program.
func (t *table) add(index int, r *report.Result) {
	name := fmt.Sprintf("%s, %v bytes", r.Name, r.Params["bytes"])
	if t.times[name] == nil {
		t.names, t.times[name] = append(t.names, name), &times{}
	}
	t.times[name][index] = append(t.times[name][index], r.Median)
}

func (t *times) ratios() (ratios []float64) {
	for i := range min(len(t[0]), len(t[1])) {
		if t[1][i] > 0 {
			ratios = append(ratios, t[0][i]/t[1][i])
		}
	}
	return ratios
}

func (t *table) write(out io.Writer) error {
	r := results.Result{Columns: []string{
		"figure", "old, ns", "new, ns", "old over new", "10th to 90th percentile", "pairs",
	}}
	for _, name := range t.names {
		oldAndNew := t.times[name]
		ratios := report.Summarize(oldAndNew.ratios())
		r.Rows = append(r.Rows, []any{
			name, fmt.Sprintf("%.1f", report.Summarize(oldAndNew[0]).Median),
			fmt.Sprintf("%.1f", report.Summarize(oldAndNew[1]).Median), fmt.Sprintf("%.3f", ratios.Median),
			fmt.Sprintf("%.3f to %.3f", ratios.P10, ratios.P90), float64(ratios.Batches),
		})
	}
	text, err := r.Markdown()
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

func (t *table) slowerThan(minRatio float64) (slowBenchmarks []string) {
	for _, name := range t.names {
		if ratio := report.Summarize(t.times[name].ratios()).Median; ratio < minRatio {
			slowBenchmarks = append(slowBenchmarks, fmt.Sprintf("%s: %.3f", name, ratio))
		}
	}
	return slowBenchmarks
}
