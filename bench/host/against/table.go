package main

import (
	"fmt"
	"io"

	"symmem/bench/report"
	"symmem/bench/results"
)

// table collects the times of both programs by benchmark. A benchmark is a collective with a size.
type table struct {
	names []string          // names of the benchmarks, in order of appearance
	times map[string]*times // by name
}

// times holds the times of one benchmark in nanoseconds. Index 0 has a time for each run of the old
// program, and index 1 for each run of the new one.
type times [2][]float64

func newTable() *table { return &table{times: map[string]*times{}} }

// add adds the result of a run. index is that of the program in times.
func (t *table) add(index int, r *report.Result) {
	name := fmt.Sprintf("%s, %v bytes", r.Name, r.Params["bytes"])
	if t.times[name] == nil {
		t.times[name] = &times{}
		t.names = append(t.names, name)
	}

	t.times[name][index] = append(t.times[name][index], r.Median)
}

// ratios returns the old time divided by the new time for each pair of runs. It ignores new times
// of 0.
func (t *times) ratios() (ratios []float64) {
	oldTimes, newTimes := t[0], t[1]
	for i := range min(len(oldTimes), len(newTimes)) {
		if newTimes[i] > 0 {
			ratios = append(ratios, oldTimes[i]/newTimes[i])
		}
	}

	return ratios
}

// write writes the table as Markdown.
func (t *table) write(out io.Writer) error {
	r := results.Result{Columns: []string{
		"figure", "old, ns", "new, ns", "old over new", "10th to 90th percentile", "pairs",
	}}
	for _, name := range t.names {
		oldAndNew := t.times[name]
		oldTime := report.Summarize(oldAndNew[0]).Median
		newTime := report.Summarize(oldAndNew[1]).Median
		ratios := report.Summarize(oldAndNew.ratios())
		r.Rows = append(r.Rows, []any{
			name,
			fmt.Sprintf("%.1f", oldTime),
			fmt.Sprintf("%.1f", newTime),
			fmt.Sprintf("%.3f", ratios.Median),
			fmt.Sprintf("%.3f to %.3f", ratios.P10, ratios.P90),
			float64(ratios.Batches), // the number of ratios
		})
	}

	text, err := r.Markdown()
	if err != nil {
		return err
	}

	_, err = io.WriteString(out, text)
	return err
}

// slowerThan describes the benchmarks whose median ratio is below minRatio.
func (t *table) slowerThan(minRatio float64) (slowBenchmarks []string) {
	for _, name := range t.names {
		ratio := report.Summarize(t.times[name].ratios()).Median
		if ratio < minRatio {
			slowBenchmarks = append(slowBenchmarks, fmt.Sprintf("%s: %.3f", name, ratio))
		}
	}

	return slowBenchmarks
}
