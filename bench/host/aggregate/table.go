package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"symmem/internal/bench"
)

const (
	// ours is the label of symmem and limit that of the C program without anything around it;
	// neither is a peer.
	ours  = "symmem"
	limit = "limit"
)

// place is what rows must share to be compared.
type place struct {
	ranks, bytes int
	mode, op     string
}

func comparePlaces(a, b place) int {
	return cmp.Or(cmp.Compare(a.mode, b.mode), cmp.Compare(a.ranks, b.ranks),
		cmp.Compare(a.op, b.op), cmp.Compare(a.bytes, b.bytes))
}

// launches are the medians of all launches, in microseconds, by place and label.
type launches struct {
	times map[place]map[string][]float64
	// dropped counts rows of launches during which the machine changed.
	dropped int
}

const fields = 9

func read(in io.Reader) (*launches, error) {
	all := &launches{times: map[place]map[string][]float64{}}
	r := csv.NewReader(in)
	r.Comment, r.FieldsPerRecord = '#', fields
	for {
		record, err := r.Read()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if err := all.add(record); err != nil {
			line, _ := r.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func (l *launches) add(record []string) error {
	var numbers [fields]float64
	for _, i := range []int{1, 3, 4, 7, 8} {
		n, err := strconv.ParseFloat(record[i], 64)
		if err != nil {
			return err
		}
		numbers[i] = n
	}
	trips := bench.NewTrips(numbers[7], numbers[8])
	if trips.Mode == "mixed" || trips.Mode == "busy" {
		l.dropped++
		return nil
	}
	p := place{
		ranks: int(numbers[1]), bytes: int(numbers[3]), mode: trips.Mode, op: record[2],
	}
	if l.times[p] == nil {
		l.times[p] = map[string][]float64{}
	}
	l.times[p][record[0]] = append(l.times[p][record[0]], numbers[4])
	return nil
}

// table writes a section for each mode, number of ranks and operation.
func table(l *launches, out io.Writer) error {
	w := &writer{out: out}
	last := place{}
	var labels []string
	for _, p := range slices.SortedFunc(maps.Keys(l.times), comparePlaces) {
		section := p
		section.bytes = 0
		if section != last {
			labels = l.labels(section)
			w.section(p, labels)
			last = section
		}
		w.row(p, labels, l.times[p])
	}
	w.printf("\n%d rows were dropped: the machine changed or was busy during their launch.\n",
		l.dropped)
	return w.err
}

// labels lists the labels of a section: ours, the limit, then the peers.
func (l *launches) labels(section place) []string {
	found := map[string]bool{}
	for p, times := range l.times {
		p.bytes = 0
		if p != section {
			continue
		}
		for label := range times {
			found[label] = true
		}
	}
	delete(found, ours)
	delete(found, limit)
	return append([]string{ours, limit}, slices.Sorted(maps.Keys(found))...)
}

// writer keeps the first error.
type writer struct {
	out io.Writer
	err error
}

func (w *writer) printf(format string, args ...any) {
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.out, format, args...)
	}
}

func (w *writer) section(p place, labels []string) {
	w.printf("\n### %s, %d ranks, %s: median in us (launches)\n\n| bytes |", p.op, p.ranks, p.mode)
	for _, label := range labels {
		w.printf(" %s |", label)
	}
	w.printf(" best peer | its time over ours | the limit's over ours |\n|---|")
	for range len(labels) + 3 {
		w.printf("---|")
	}
	w.printf("\n")
}

func (w *writer) row(p place, labels []string, times map[string][]float64) {
	w.printf("| %d |", p.bytes)
	for _, label := range labels {
		w.printf(" %s |", cell(times[label]))
	}
	peer, best := bestPeer(times)
	mine, has := median(times[ours])
	w.printf(" %s |", peer)
	for _, other := range []float64{best, medianOr(times[limit], 0)} {
		if has && other > 0 {
			w.printf(" %.2f |", other/mine)
		} else {
			w.printf(" |")
		}
	}
	w.printf("\n")
}

// bestPeer names the fastest label that is neither ours nor the limit.
func bestPeer(times map[string][]float64) (label string, best float64) {
	for _, l := range slices.Sorted(maps.Keys(times)) {
		m, ok := median(times[l])
		if l != ours && l != limit && ok && (label == "" || m < best) {
			label, best = l, m
		}
	}
	return label, best
}

func cell(times []float64) string {
	m, ok := median(times)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.4g (%d)", m, len(times))
}

func medianOr(times []float64, otherwise float64) float64 {
	if m, ok := median(times); ok {
		return m
	}
	return otherwise
}

// median is that of the launches; false if there are none.
func median(times []float64) (float64, bool) {
	if len(times) == 0 {
		return 0, false
	}
	return bench.Summarize(times).Median, true
}
