package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"symmem/bench/report"
	"symmem/bench/results"
)

const (
	ours  = "symmem"
	limit = "limit" // the label of a plain C program; all other labels are peers: other libraries
)

// rowKey holds the values that comparable rows have in common.
type rowKey struct {
	ranks, bytes int
	mode, op     string
}

func compareKeys(a, b rowKey) int {
	return cmp.Or(cmp.Compare(a.mode, b.mode), cmp.Compare(a.ranks, b.ranks),
		cmp.Compare(a.op, b.op), cmp.Compare(a.bytes, b.bytes))
}

// launches holds the results of all launches of a benchmark.
type launches struct {
	medians map[rowKey]map[string][]float64 // in microseconds, by key and label
	dropped int                             // rows ignored because the machine changed or was busy
}

const fields = 9

func read(in io.Reader) (*launches, error) {
	parsed := &launches{medians: map[rowKey]map[string][]float64{}}
	r := csv.NewReader(in)
	r.Comment, r.FieldsPerRecord = '#', fields
	for {
		record, err := r.Read()
		if err == io.EOF {
			return parsed, nil
		}
		if err != nil {
			return nil, err
		}
		if err := parsed.add(record); err != nil {
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
	trips := report.NewTrips(numbers[7], numbers[8])
	if trips.Mode == "mixed" || trips.Mode == "busy" {
		l.dropped++
		return nil
	}
	key := rowKey{
		ranks: int(numbers[1]), bytes: int(numbers[3]), mode: trips.Mode, op: record[2],
	}
	if l.medians[key] == nil {
		l.medians[key] = map[string][]float64{}
	}
	l.medians[key][record[0]] = append(l.medians[key][record[0]], numbers[4])
	return nil
}

// section holds the table for one mode, number of ranks and operation.
type section struct {
	rowKey
	result *results.Result
}

func (l *launches) sections() []section {
	var all []section
	var labels []string
	for _, key := range slices.SortedFunc(maps.Keys(l.medians), compareKeys) {
		sectionKey := key
		sectionKey.bytes = 0
		if len(all) == 0 || all[len(all)-1].rowKey != sectionKey {
			labels = l.labels(sectionKey)
			columns := append([]string{"bytes"}, labels...)
			columns = append(columns, "best peer", "its time over ours", "the limit's over ours")
			all = append(all, section{sectionKey, &results.Result{Columns: columns}})
		}
		r := all[len(all)-1].result
		r.Rows = append(r.Rows, row(key, labels, l.medians[key]))
	}
	return all
}

func table(l *launches, out io.Writer) error {
	for _, s := range l.sections() {
		text, err := s.result.Markdown()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "\n### %s, %d ranks, %s: median in us (launches)\n\n%s",
			s.op, s.ranks, s.mode, text)
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out,
		"\n%d rows were dropped: the machine changed or was busy during their launch.\n", l.dropped)
	return err
}

func write(l *launches, folder string, origin results.Run) error {
	for _, s := range l.sections() {
		s.result.Runs = []results.Run{origin}
		text, err := s.result.Encode()
		if err != nil {
			return err
		}
		name := fmt.Sprintf("host-%s-%d-%s.json", strings.ReplaceAll(s.op, "_", "-"), s.ranks, s.mode)
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// labels returns the labels of a section: ours, limit, and then the peers.
func (l *launches) labels(section rowKey) []string {
	found := map[string]bool{}
	for key, medians := range l.medians {
		key.bytes = 0
		if key != section {
			continue
		}
		for label := range medians {
			found[label] = true
		}
	}
	delete(found, ours)
	delete(found, limit)
	return append([]string{ours, limit}, slices.Sorted(maps.Keys(found))...)
}

// row returns the cells of a table row, which compares the labels.
func row(key rowKey, labels []string, launchMedians map[string][]float64) []any {
	times := map[string]float64{}
	for label, medians := range launchMedians {
		times[label] = report.Summarize(medians).Median
	}
	cells := []any{float64(key.bytes)}
	for _, label := range labels {
		if launches := len(launchMedians[label]); launches > 0 {
			cells = append(cells, fmt.Sprintf("%.4g (%d)", times[label], launches))
		} else {
			cells = append(cells, "-")
		}
	}
	peer := bestPeer(times)
	cells = append(cells, peer)
	for _, reference := range []float64{times[peer], times[limit]} {
		if own := times[ours]; own > 0 && reference > 0 {
			cells = append(cells, fmt.Sprintf("%.2f", reference/own))
		} else {
			cells = append(cells, nil)
		}
	}
	return cells
}

// bestPeer returns the label of the fastest peer, or "" if there is none.
func bestPeer(times map[string]float64) (best string) {
	for _, label := range slices.Sorted(maps.Keys(times)) {
		if label != ours && label != limit && (best == "" || times[label] < times[best]) {
			best = label
		}
	}
	return best
}
