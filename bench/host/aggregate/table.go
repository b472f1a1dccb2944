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
	ownLabel   = "symmem"
	limitLabel = "limit" // of a plain C program; other labels are peers (other libraries)
)

// rowKey is the same in all rows that are compared with each other.
type rowKey struct {
	ranks, bytes int
	mode         string // see report.Trips
	operation    string
}

func compareKeys(a, b rowKey) int {
	return cmp.Or(cmp.Compare(a.mode, b.mode), cmp.Compare(a.ranks, b.ranks),
		cmp.Compare(a.operation, b.operation), cmp.Compare(a.bytes, b.bytes))
}

type launchResults struct {
	medians map[rowKey]map[string][]float64 // in microseconds, by key and label
	// droppedCount counts rows of launches during which the machine was busy or the mode changed.
	droppedCount int
}

const (
	columnLabel = iota
	columnRanks
	columnOperation
	columnBytes
	columnMedian
	columnP10
	columnP90
	columnTripBefore
	columnTripAfter
	columnCount
)

func readRows(in io.Reader) (*launchResults, error) {
	launches := &launchResults{medians: map[rowKey]map[string][]float64{}}
	r := csv.NewReader(in)
	r.Comment, r.FieldsPerRecord = '#', columnCount
	for {
		record, err := r.Read()
		if err == io.EOF {
			return launches, nil
		}
		if err != nil {
			return nil, err
		}
		if err := launches.add(record); err != nil {
			line, _ := r.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

func (l *launchResults) add(record []string) error {
	var numbers [columnCount]float64
	for _, i := range []int{
		columnRanks, columnBytes, columnMedian, columnTripBefore, columnTripAfter,
	} {
		n, err := strconv.ParseFloat(record[i], 64)
		if err != nil {
			return err
		}
		numbers[i] = n
	}
	roundTrips := report.NewTrips(numbers[columnTripBefore], numbers[columnTripAfter])
	if roundTrips.Mode == "mixed" || roundTrips.Mode == "busy" {
		l.droppedCount++
		return nil
	}
	key := rowKey{
		ranks: int(numbers[columnRanks]), bytes: int(numbers[columnBytes]),
		mode: roundTrips.Mode, operation: record[columnOperation],
	}
	if l.medians[key] == nil {
		l.medians[key] = map[string][]float64{}
	}
	label := record[columnLabel]
	l.medians[key][label] = append(l.medians[key][label], numbers[columnMedian])
	return nil
}

type section struct {
	rowKey
	table *results.Result
}

func (l *launchResults) sections() []section {
	var sections []section
	var labels []string
	for _, key := range slices.SortedFunc(maps.Keys(l.medians), compareKeys) {
		sectionKey := key
		sectionKey.bytes = 0
		if len(sections) == 0 || sections[len(sections)-1].rowKey != sectionKey {
			labels = l.labels(sectionKey)
			columns := append([]string{"bytes"}, labels...)
			columns = append(columns, "best peer", "its time over ours", "the limit's over ours")
			sections = append(sections, section{sectionKey, &results.Result{Columns: columns}})
		}
		r := sections[len(sections)-1].table
		r.Rows = append(r.Rows, tableRow(key, labels, l.medians[key]))
	}
	return sections
}

func printTables(l *launchResults, out io.Writer) error {
	for _, s := range l.sections() {
		text, err := s.table.Markdown()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "\n### %s, %d ranks, %s: median in us (launches)\n\n%s",
			s.operation, s.ranks, s.mode, text)
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out,
		"\nDropped rows: %d, because the machine changed or was busy during their launch.\n",
		l.droppedCount)
	return err
}

func writeResults(l *launchResults, folder string, origin results.Run) error {
	for _, s := range l.sections() {
		s.table.Runs = []results.Run{origin}
		text, err := s.table.Encode()
		if err != nil {
			return err
		}
		operation := strings.ReplaceAll(s.operation, "_", "-")
		name := fmt.Sprintf("host-%s-%d-%s.json", operation, s.ranks, s.mode)
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (l *launchResults) labels(section rowKey) []string {
	labelSet := map[string]bool{}
	for key, medians := range l.medians {
		key.bytes = 0
		if key != section {
			continue
		}
		for label := range medians {
			labelSet[label] = true
		}
	}
	delete(labelSet, ownLabel)
	delete(labelSet, limitLabel)
	return append([]string{ownLabel, limitLabel}, slices.Sorted(maps.Keys(labelSet))...)
}

func tableRow(key rowKey, labels []string, launchMedians map[string][]float64) []any {
	times := map[string]float64{}
	for label, medians := range launchMedians {
		times[label] = report.Summarize(medians).Median
	}
	cells := []any{float64(key.bytes)}
	for _, label := range labels {
		if launchCount := len(launchMedians[label]); launchCount > 0 {
			cells = append(cells, fmt.Sprintf("%.4g (%d)", times[label], launchCount))
		} else {
			cells = append(cells, "-")
		}
	}
	peer := bestPeer(times)
	cells = append(cells, peer)
	for _, referenceTime := range []float64{times[peer], times[limitLabel]} {
		if ownTime := times[ownLabel]; ownTime > 0 && referenceTime > 0 {
			cells = append(cells, fmt.Sprintf("%.2f", referenceTime/ownTime))
		} else {
			cells = append(cells, nil)
		}
	}
	return cells
}

func bestPeer(times map[string]float64) (best string) {
	for _, label := range slices.Sorted(maps.Keys(times)) {
		if label != ownLabel && label != limitLabel && (best == "" || times[label] < times[best]) {
			best = label
		}
	}
	return best
}
