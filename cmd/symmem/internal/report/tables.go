package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/page"
	"symmem/internal/ranklist"
)

// pathKey identifies a row of Page.Paths.
type pathKey struct{ group, operation, path string }

// countPaths adds the calls of one rank in the group s to the rows of Page.Paths, which count
// calls by group, operation and path. A path is a way in which symmem executes a collective.
func (b *builder) countPaths(s *diff.SequenceResult, m *diff.Member) {
	for i := range m.Sequence.Events {
		e := &m.Sequence.Events[i] // of a call, so Block is the index of its text
		if int(e.Block) >= len(m.History.Texts) || e.Block < 0 {
			continue
		}
		operation, path := parseCall(m.History.Texts[e.Block])
		key := pathKey{s.Title, operation, path}
		index, ok := b.pathIndexes[key]
		if !ok {
			index = len(b.page.Paths)
			b.pathIndexes[key] = index
			b.page.Paths = append(b.page.Paths, page.Path{
				Group: key.group, Operation: operation, Path: path,
				Calls: make([]int64, len(b.page.Ranks)), Bytes: make([]int64, len(b.page.Ranks)),
			})
		}
		b.page.Paths[index].Calls[m.RankIndex]++
		b.page.Paths[index].Bytes[m.RankIndex] += e.Bytes
	}
}

// parseCall returns the operation and the path in the text of a call. The path is empty unless the
// call is a collective of symmem. A quoted text is the name of a value that ranks compared.
func parseCall(text string) (operation, path string) {
	operation, _, _ = strings.Cut(text, " ")
	operation = strings.TrimSuffix(operation, ",")
	if _, rest, ok := strings.Cut(text, ", path "); ok {
		path, _, _ = strings.Cut(rest, ",")
	} else if isQuoted := strings.HasPrefix(text, `"`); isQuoted {
		operation = "value"
	}
	return history.MakePrintable(operation), history.MakePrintable(path)
}

// addTables adds all tables except the rows of Paths, which it only sorts. ranks[i] is the history
// of Page.Ranks[i], or nil if there is none.
func (b *builder) addTables(r *diff.Report, ranks []*history.Rank) {
	slices.SortStableFunc(b.page.Paths, func(x, y page.Path) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Operation, y.Operation),
			cmp.Compare(x.Path, y.Path))
	})
	windows := map[windowKey]int{} // indexes in Page.Windows
	for i, rank := range ranks {
		if rank == nil {
			continue
		}
		for _, f := range rank.Faults {
			b.page.Faults = addRow(b.page.Faults, i, f.Group, history.MakePrintable(f.Text), f.UnixMicro)
		}
		for _, c := range rank.PendingCalls {
			b.page.Pending = addRow(b.page.Pending, i, c.Group,
				history.MakePrintable(c.Text+": "+c.State), c.UnixMicro)
		}
		for _, w := range rank.Windows {
			b.addWindow(windows, i, &w)
		}
	}
	b.addMissingWindows()
	for i := range r.Sequences {
		b.addMissingCalls(&r.Sequences[i])
	}
}

// addRow adds a rank to the row with the given group and text, or adds a row if there is none. It
// returns the rows. The time of a row is the earliest time of its ranks, in microseconds since
// 1970.
func addRow(rows []page.Row, rank int, group, text string, time int64) []page.Row {
	for i := range rows {
		if row := &rows[i]; row.Group == group && row.Text == text {
			if !slices.Contains(row.Ranks, rank) {
				row.Ranks = append(row.Ranks, rank)
			}
			row.Time = min(row.Time, time)
			return rows
		}
	}
	return append(rows, page.Row{Ranks: []int{rank}, Group: group, Text: text, Time: time})
}

// windowKey identifies a row of Page.Windows.
type windowKey struct {
	group, pool string
	segment     int32
}

// addWindow records that a rank has registered a window. rows maps each key to the index of its
// row in Page.Windows.
func (b *builder) addWindow(rows map[windowKey]int, rank int, w *history.Window) {
	key := windowKey{w.Group, w.Pool, w.Segment}
	index, ok := rows[key]
	if !ok {
		index = len(b.page.Windows)
		rows[key] = index
		b.page.Windows = append(b.page.Windows, page.Window{
			Group: history.MakePrintable(w.Group), Pool: history.MakePrintable(w.Pool),
			Segment: int(w.Segment), Bytes: w.Bytes, States: make([]page.State, len(b.page.Ranks)),
		})
	}
	state := page.Registered
	if w.IsDeregistered {
		state = page.Deregistered
	}
	b.page.Windows[index].States[rank] = state
}

// addMissingWindows adds a row to Page.Pending for each window that some ranks of a group have
// and others never had. Ranks without any window of the group do not count, because they may not
// belong to the group.
func (b *builder) addMissingWindows() {
	isMember := map[string][]bool{} // whether a rank had a window, by group and rank
	for _, w := range b.page.Windows {
		if isMember[w.Group] == nil {
			isMember[w.Group] = make([]bool, len(w.States))
		}
		for rank, state := range w.States {
			isMember[w.Group][rank] = isMember[w.Group][rank] || state != page.Absent
		}
	}
	for _, w := range b.page.Windows {
		var missing []int
		for rank, state := range w.States {
			if isMember[w.Group][rank] && state == page.Absent {
				missing = append(missing, rank)
			}
		}
		if slices.Contains(w.States, page.Registered) && len(missing) > 0 {
			b.page.Pending = append(b.page.Pending, page.Row{
				Ranks: missing, Group: w.Group,
				Text: fmt.Sprintf("segment %d of pool %s is not registered; other ranks have registered it",
					w.Segment, w.Pool),
			})
		}
	}
}

// addMissingCalls adds each rank that has made fewer calls than others of its group to a row of
// Page.Pending that names the first missing call.
func (b *builder) addMissingCalls(s *diff.SequenceResult) {
	if s.Class != history.Calls {
		return
	}
	longest := -1 // index of the member with the most calls
	for i := range s.Members {
		if longest < 0 || countComparedCalls(&s.Members[i]) > countComparedCalls(&s.Members[longest]) {
			longest = i
		}
	}
	for i := range s.Members {
		m, longestMember := &s.Members[i], &s.Members[longest]
		count := countComparedCalls(m)
		missing := countComparedCalls(longestMember) - count
		if missing == 0 {
			continue
		}
		e := &longestMember.Sequence.Events[count+longestMember.SkippedRequests]
		text := fmt.Sprintf("request %d is missing: %s; rank %d has made %s", count,
			longestMember.History.EventText(e), longestMember.History.Number,
			ranklist.Plural(missing, "more request"))
		b.page.Pending = addRow(b.page.Pending, m.RankIndex, s.Title, text, e.UnixMicro)
	}
}

// countComparedCalls returns the number of a member's calls from the first call that all files
// contain.
func countComparedCalls(m *diff.Member) int {
	if m.Sequence == nil {
		return 0
	}
	return len(m.Sequence.Events) - m.SkippedRequests
}
