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
		e := &m.Sequence.Events[i]
		textIndex := int(e.Block) // all events of a group are calls, for which Block is this index
		if textIndex < 0 || textIndex >= len(m.History.Texts) {
			continue
		}

		operation, path := parseCall(m.History.Texts[textIndex])
		key := pathKey{group: s.Title, operation: operation, path: path}
		index, ok := b.pathIndexes[key]
		if !ok {
			index = len(b.page.Paths)
			b.pathIndexes[key] = index
			b.page.Paths = append(b.page.Paths, page.Path{
				Group: s.Title, Operation: operation, Path: path,
				Calls: make([]int64, len(b.page.Ranks)), Bytes: make([]int64, len(b.page.Ranks)),
			})
		}

		row := &b.page.Paths[index]
		row.Calls[m.RankIndex]++
		row.Bytes[m.RankIndex] += e.Bytes
	}
}

// parseCall returns the operation and the path in the text of a call, such as "AllReduce" and
// "plain". The path is empty unless the call is a collective of symmem. If the text begins with a
// quoted name, the call compared a value of this name between the ranks, and the operation is
// "value".
func parseCall(text string) (operation, path string) {
	operation, _, _ = strings.Cut(text, " ")
	operation = strings.TrimSuffix(operation, ",")
	_, afterPath, hasPath := strings.Cut(text, ", path ")
	isQuoted := strings.HasPrefix(text, `"`)
	if hasPath {
		path, _, _ = strings.Cut(afterPath, ",")
	} else if isQuoted {
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
	windowIndexes := map[windowKey]int{} // indexes in Page.Windows
	for i, rank := range ranks {
		if rank == nil {
			continue
		}

		for _, f := range rank.Faults {
			text := history.MakePrintable(f.Text)
			b.page.Faults = addToRow(b.page.Faults, i, f.Group, text, f.UnixMicro)
		}

		for _, c := range rank.PendingCalls {
			text := history.MakePrintable(c.Text + ": " + c.State)
			b.page.Pending = addToRow(b.page.Pending, i, c.Group, text, c.UnixMicro)
		}

		for _, w := range rank.Windows {
			b.addWindow(windowIndexes, i, &w)
		}
	}

	b.addMissingWindows()
	for i := range r.Sequences {
		b.addMissingCalls(&r.Sequences[i])
	}
}

// addToRow adds a rank to the row with the given group and text. If there is none, it adds a row.
// rank is an index in Page.Ranks. The time of a row is the earliest known time of its
// ranks, in microseconds since 1970, and 0 if none is known. addToRow returns the rows.
func addToRow(rows []page.Row, rank int, group, text string, time int64) []page.Row {
	for i := range rows {
		row := &rows[i]
		if row.Group != group || row.Text != text {
			continue
		}

		if !slices.Contains(row.Ranks, rank) {
			row.Ranks = append(row.Ranks, rank)
		}

		isEarlier := row.Time == 0 || time < row.Time
		if time != 0 && isEarlier {
			row.Time = time
		}

		return rows
	}

	return append(rows, page.Row{Ranks: []int{rank}, Group: group, Text: text, Time: time})
}

// windowKey identifies a row of Page.Windows.
type windowKey struct {
	group   string // ID of the group
	pool    string // ID of the pool
	segment int32  // number of the segment in the pool
}

// addWindow records that a rank has registered a window (a segment of a pool). rank is an index in
// Page.Ranks. indexes maps each key to the index of its row in Page.Windows.
func (b *builder) addWindow(indexes map[windowKey]int, rank int, w *history.Window) {
	key := windowKey{group: w.Group, pool: w.Pool, segment: w.Segment}
	index, ok := indexes[key]
	if !ok {
		index = len(b.page.Windows)
		indexes[key] = index
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
			if state != page.Absent {
				isMember[w.Group][rank] = true
			}
		}
	}

	for _, w := range b.page.Windows {
		var missing []int // indexes in Page.Ranks
		for rank, state := range w.States {
			if isMember[w.Group][rank] && state == page.Absent {
				missing = append(missing, rank)
			}
		}

		isInUse := slices.Contains(w.States, page.Registered)
		if isInUse && len(missing) > 0 {
			b.page.Pending = append(b.page.Pending, page.Row{
				Ranks: missing, Group: w.Group,
				Text: fmt.Sprintf("segment %d of pool %s is not registered; other ranks have registered it",
					w.Segment, w.Pool),
			})
		}
	}
}

// addMissingCalls adds each rank that has made fewer calls than another rank of its group to a row
// of Page.Pending. The row names the first missing call.
func (b *builder) addMissingCalls(s *diff.SequenceResult) {
	if s.Class != history.Calls || len(s.Members) == 0 {
		return
	}

	longest := &s.Members[0] // the member with the most calls
	for i := range s.Members {
		m := &s.Members[i]
		if countComparedCalls(m) > countComparedCalls(longest) {
			longest = m
		}
	}

	for i := range s.Members {
		m := &s.Members[i]
		count := countComparedCalls(m)
		missingCount := countComparedCalls(longest) - count
		if missingCount == 0 {
			continue
		}

		firstMissing := &longest.Sequence.Events[longest.SkippedRequests+count]
		text := fmt.Sprintf("request %d is missing: %s; rank %d has made %s", count,
			longest.History.EventText(firstMissing), longest.History.Number,
			ranklist.Plural(missingCount, "more request"))
		b.page.Pending = addToRow(
			b.page.Pending, m.RankIndex, s.Title, text, firstMissing.UnixMicro)
	}
}

// countComparedCalls returns the number of a member's calls from the first call that all files
// contain.
func countComparedCalls(m *diff.Member) int {
	if m.Sequence == nil {
		return 0
	}

	return len(m.Sequence.Events) - m.SkippedRequests // all events of a group are calls
}
