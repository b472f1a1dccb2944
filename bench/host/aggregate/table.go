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

// A label names the program that was measured. Labels other than these two are peers, which are
// other libraries such as MPI.
const (
	ownLabel   = "symmem"
	limitLabel = "limit" // a C program without checks, whose times can hardly be reached (limit.c)
)

// rowKey is the same in all rows that are compared with each other.
type rowKey struct {
	ranks, bytes int
	mode         string // how far the processors were from each other, see report.Trips
	operation    string
}

func compareKeys(a, b rowKey) int {
	return cmp.Or(cmp.Compare(a.mode, b.mode), cmp.Compare(a.ranks, b.ranks),
		cmp.Compare(a.operation, b.operation), cmp.Compare(a.bytes, b.bytes))
}

// launchResults holds the results of all launches. A launch is one run of a program, and its result
// is a median of many calls.
type launchResults struct {
	// medians holds a time in microseconds for each launch, by key and label.
	medians map[rowKey]map[string][]float64
	// droppedCount counts rows of launches during which the machine was busy or the mode changed.
	droppedCount int
}

// The columns of a row.
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
	columnCount // number of columns
)

// numericColumns lists the columns of numbers that add uses.
var numericColumns = []int{
	columnRanks, columnBytes, columnMedian, columnTripBefore, columnTripAfter,
}

// readRows reads rows in the format that the comment of this command describes.
func readRows(in io.Reader) (*launchResults, error) {
	launches := &launchResults{medians: map[rowKey]map[string][]float64{}}
	r := csv.NewReader(in)
	r.Comment = '#'
	r.FieldsPerRecord = columnCount
	for {
		record, err := r.Read()
		if err == io.EOF {
			return launches, nil
		}

		if err != nil {
			return nil, err
		}

		if err := launches.add(record); err != nil {
			line, _ := r.FieldPos(columnLabel)
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// add adds a row, or drops it if its time is not reliable.
func (l *launchResults) add(record []string) error {
	var numbers [columnCount]float64 // by column
	for _, column := range numericColumns {
		number, err := strconv.ParseFloat(record[column], 64)
		if err != nil {
			return err
		}

		numbers[column] = number
	}

	roundTrips := report.NewTrips(numbers[columnTripBefore], numbers[columnTripAfter])
	if roundTrips.Mode == "mixed" || roundTrips.Mode == "busy" {
		l.droppedCount++
		return nil
	}

	key := rowKey{
		ranks:     int(numbers[columnRanks]),
		bytes:     int(numbers[columnBytes]),
		mode:      roundTrips.Mode,
		operation: record[columnOperation],
	}
	if l.medians[key] == nil {
		l.medians[key] = map[string][]float64{}
	}

	label := record[columnLabel]
	l.medians[key][label] = append(l.medians[key][label], numbers[columnMedian])
	return nil
}

// section contains the table of an operation, a mode and a number of ranks. The table has a row for
// each size.
type section struct {
	key   rowKey // without bytes
	table *results.Result
}

// sectionOf returns the key of the section that contains the rows with this key.
func (k rowKey) sectionOf() rowKey {
	k.bytes = 0
	return k
}

// sections returns all tables.
func (l *launchResults) sections() []section {
	var sections []section
	var labels []string // columns of the last section
	for _, key := range slices.SortedFunc(maps.Keys(l.medians), compareKeys) {
		last := len(sections) - 1 // -1 before the first section
		if last < 0 || sections[last].key != key.sectionOf() {
			labels = l.labels(key.sectionOf())
			columns := slices.Concat([]string{"bytes"}, labels,
				[]string{"best peer", "its time over ours", "the limit's over ours"})
			table := &results.Result{Columns: columns}
			sections = append(sections, section{key: key.sectionOf(), table: table})
			last++
		}

		table := sections[last].table
		table.Rows = append(table.Rows, tableRow(key, labels, l.medians[key]))
	}

	return sections
}

// printTables writes all tables as Markdown.
func printTables(l *launchResults, out io.Writer) error {
	for _, s := range l.sections() {
		text, err := s.table.Markdown()
		if err != nil {
			return err
		}

		_, err = fmt.Fprintf(out, "\n### %s, %d ranks, %s: median in us (launches)\n\n%s",
			s.key.operation, s.key.ranks, s.key.mode, text)
		if err != nil {
			return err
		}
	}

	_, err := fmt.Fprintf(out,
		"\nDropped rows: %d, because the machine changed or was busy during their launch.\n",
		l.droppedCount)
	return err
}

// writeResults writes each table as a result file. origin says where the rows come from.
func writeResults(l *launchResults, folder string, origin results.Run) error {
	for _, s := range l.sections() {
		s.table.Runs = []results.Run{origin}
		text, err := s.table.Encode()
		if err != nil {
			return err
		}

		operation := strings.ReplaceAll(s.key.operation, "_", "-")
		name := fmt.Sprintf("host-%s-%d-%s.json", operation, s.key.ranks, s.key.mode)
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			return err
		}
	}

	return nil
}

// labels returns the labels that the rows of a section have, with ownLabel and limitLabel first.
func (l *launchResults) labels(section rowKey) []string {
	peers := map[string]bool{}
	for key, medians := range l.medians {
		if key.sectionOf() != section {
			continue
		}

		for label := range medians {
			peers[label] = true
		}
	}

	delete(peers, ownLabel)
	delete(peers, limitLabel)
	labels := []string{ownLabel, limitLabel}
	return append(labels, slices.Sorted(maps.Keys(peers))...)
}

// tableRow returns the cells of a row. launchMedians holds the medians of the launches by label.
func tableRow(key rowKey, labels []string, launchMedians map[string][]float64) []any {
	times := map[string]float64{} // by label; the median of the medians
	for label, medians := range launchMedians {
		times[label] = report.Summarize(medians).Median
	}

	cells := []any{float64(key.bytes)}
	for _, label := range labels {
		launchCount := len(launchMedians[label])
		if launchCount > 0 {
			cells = append(cells, fmt.Sprintf("%.4g (%d)", times[label], launchCount))
		} else {
			cells = append(cells, "-")
		}
	}

	peer := bestPeer(times) // "" without a peer, which has no time
	ownTime := times[ownLabel]
	return append(cells, peer,
		ratioCell(times[peer], ownTime), ratioCell(times[limitLabel], ownTime))
}

// ratioCell returns a cell with the ratio of two times, or an empty cell if a time is missing.
func ratioCell(otherTime, ownTime float64) any {
	if otherTime <= 0 || ownTime <= 0 {
		return nil
	}

	return fmt.Sprintf("%.2f", otherTime/ownTime)
}

// bestPeer returns the label of the fastest peer, or "" if there is none.
func bestPeer(times map[string]float64) (best string) {
	for _, label := range slices.Sorted(maps.Keys(times)) {
		isPeer := label != ownLabel && label != limitLabel
		if !isPeer {
			continue
		}

		if best == "" || times[label] < times[best] {
			best = label
		}
	}

	return best
}
