package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"symmem/bench/report"
	"symmem/bench/results"
)

// A label names the measured program. Labels other than these two are peers, such as MPI.
const (
	ownLabel   = "symmem"
	limitLabel = "limit" // limit.c, a C program without checks: the shortest time in practice
)

// section contains a table for one operation, mode and number of ranks, with a row for each size.
type section struct {
	key   rowKey // without bytes
	table *results.Table
}

func (k rowKey) withoutBytes() rowKey {
	k.bytes = 0
	return k
}

// sections returns all tables.
func (l *launchResults) sections() []section {
	var sections []section
	var labels []string      // columns of the last section
	var table *results.Table // of the last section
	for _, key := range slices.SortedFunc(maps.Keys(l.medians), compareKeys) {
		sectionKey := key.withoutBytes()
		isNewSection := len(sections) == 0 || sections[len(sections)-1].key != sectionKey
		if isNewSection {
			labels = l.labels(sectionKey)
			columns := slices.Concat([]string{"bytes"}, labels,
				[]string{"best peer", "its time over ours", "the limit's over ours"})
			table = &results.Table{Columns: columns}
			sections = append(sections, section{key: sectionKey, table: table})
		}

		table.Rows = append(table.Rows, tableRow(key, labels, l.medians[key]))
	}

	return sections
}

func compareKeys(a, b rowKey) int {
	return cmp.Or(cmp.Compare(a.mode, b.mode), cmp.Compare(a.ranks, b.ranks),
		cmp.Compare(a.operation, b.operation), cmp.Compare(a.bytes, b.bytes))
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

// writeResults writes each table as a result file.
func writeResults(l *launchResults, folder string, r results.Run) error {
	for _, s := range l.sections() {
		s.table.Runs = []results.Run{r}
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

// labels returns ownLabel, limitLabel, and the peers in a section.
func (l *launchResults) labels(sectionKey rowKey) []string {
	peers := map[string]bool{}
	for key, medians := range l.medians {
		if key.withoutBytes() != sectionKey {
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

// tableRow returns the cells of a row. launchMedians holds the median of each launch, by label.
func tableRow(key rowKey, labels []string, launchMedians map[string][]float64) []any {
	times := map[string]float64{} // by label; median over the launches
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

	peer := bestPeer(times) // without a peer, times[peer] is 0
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
