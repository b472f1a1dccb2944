package main

import (
	"fmt"
	"io"
	"slices"

	"symmem/internal/bench"
)

// table has the figures of both programs, in the order in which they first came.
type table struct {
	names []string
	times map[string]*times
}

// times are those of one figure in nanoseconds, the old program's and the new one's, by pair.
type times [2][]float64

func newTable() *table { return &table{times: map[string]*times{}} }

// add adds a figure of one run of a program; 0 is the old one, 1 the new.
func (t *table) add(which int, r *bench.Result) {
	name := fmt.Sprintf("%s, %v path", r.Name, r.Params["path"])
	if bytes, ok := r.Params["bytes"].(float64); ok {
		name = fmt.Sprintf("%s, %.0f bytes", r.Name, bytes)
	}
	if t.times[name] == nil {
		t.names, t.times[name] = append(t.names, name), &times{}
	}
	both := t.times[name]
	both[which] = append(both[which], r.Median)
}

// ratios are those of the old time to the new one, pair by pair.
func (b *times) ratios() (ratios []float64) {
	for i := range min(len(b[0]), len(b[1])) {
		if b[1][i] > 0 {
			ratios = append(ratios, b[0][i]/b[1][i])
		}
	}
	return ratios
}

// quartiles are the lower one, the median and the upper one.
func quartiles(all []float64) (low, median, high float64) {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	if n == 0 {
		return 0, 0, 0
	}
	return sorted[n/4], sorted[n/2], sorted[n-1-n/4]
}

// write writes the table as Markdown.
func (t *table) write(out io.Writer) error {
	const head = "| figure | old, ns | new, ns | old over new | quartiles | pairs |\n" +
		"|---|---|---|---|---|---|\n"
	if _, err := io.WriteString(out, head); err != nil {
		return err
	}
	for _, name := range t.names {
		both := t.times[name]
		ratios := both.ratios()
		low, middle, high := quartiles(ratios)
		_, before, _ := quartiles(both[0])
		_, after, _ := quartiles(both[1])
		_, err := fmt.Fprintf(out, "| %s | %.1f | %.1f | %.3f | %.3f to %.3f | %d |\n", name, before,
			after, middle, low, high, len(ratios))
		if err != nil {
			return err
		}
	}
	return nil
}

// below lists the figures whose ratio is below a bar.
func (t *table) below(bar float64) (slow []string) {
	for _, name := range t.names {
		if _, middle, _ := quartiles(t.times[name].ratios()); middle < bar {
			slow = append(slow, fmt.Sprintf("%s: %.3f", name, middle))
		}
	}
	return slow
}
