package main

import (
	"fmt"
	"io"

	"symmem/bench/report"
	"symmem/bench/results"
)

// table collects the times of both checkouts by benchmark, such as "all_reduce, 8 bytes".
type table struct {
	names []string          // names of the benchmarks, in order of appearance
	times map[string]*times // by name
}

// times holds the times of one benchmark in nanoseconds, for each run of checkout 0 (old) and 1
// (new).
type times [2][]float64

func newTable() *table { return &table{times: map[string]*times{}} }

// add adds the result of one benchmark in a run of a checkout.
func (t *table) add(checkout int, r *report.Result) {
	name := fmt.Sprintf("%s, %v bytes", r.Name, r.Params["bytes"])
	if t.times[name] == nil {
		t.times[name] = &times{}
		t.names = append(t.names, name)
	}

	t.times[name][checkout] = append(t.times[name][checkout], r.Median)
}

// ratios returns the old time divided by the new time for each pair of runs with a nonzero new
// time.
func (t *times) ratios() (ratios []float64) {
	oldTimes, newTimes := t[0], t[1]
	for i := range min(len(oldTimes), len(newTimes)) {
		if newTimes[i] > 0 {
			ratios = append(ratios, oldTimes[i]/newTimes[i])
		}
	}

	return ratios
}

// write formats the table as Markdown.
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
			float64(ratios.Batches), // number of ratios
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
