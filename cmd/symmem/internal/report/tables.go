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

// The page has four tables. In this example, rank 2 has hung, and ranks 0 and 1 wait for it:
//
//	Paths    AllReduce on the direct path, in the group world: 100 calls on each of ranks 0 and 1,
//	         and 99 on rank 2
//	Windows  segment 5 of a pool: ranks 0 and 1 have registered it with the group world
//	Pending  rank 2: segment 5 is not registered; request 99 is missing
//	Faults   ranks 0 and 1: the group world has failed
//
// A path is a way in which symmem executes a call. A window is a segment (a range of memory) that
// is registered with a group. All ranks of a group should register the same segments and make the
// same calls, so Pending lists what a rank lacks. In this file, a rank is an index in Page.Ranks.

// pathKey identifies a row of Paths.
type pathKey struct{ group, operation, path string }

// countPaths adds the calls of one rank in a group to Paths.
func (b *builder) countPaths(s *diff.SequenceResult, m *diff.Member) {
	for i := range m.Sequence.Events {
		e := &m.Sequence.Events[i]
		textIndex := int(e.Block) // all events of a group are calls, for which Block is this index
		isKnown := textIndex >= 0 && textIndex < len(m.History.Texts)
		if !isKnown {
			continue
		}

		operation, path := parseCall(m.History.Texts[textIndex])
		row := b.findOrAddPath(pathKey{group: s.Title, operation: operation, path: path})
		row.Calls[m.RankIndex]++
		row.Bytes[m.RankIndex] += e.Bytes
	}
}

// findOrAddPath returns the row of Paths with a key. If there is none, it adds a row.
func (b *builder) findOrAddPath(key pathKey) *page.Path {
	index, isPresent := b.pathIndexes[key]
	if !isPresent {
		index = len(b.page.Paths)
		b.pathIndexes[key] = index
		b.page.Paths = append(b.page.Paths, page.Path{
			Group: key.group, Operation: key.operation, Path: key.path,
			Calls: make([]int64, len(b.page.Ranks)), Bytes: make([]int64, len(b.page.Ranks)),
		})
	}

	return &b.page.Paths[index]
}

// parseCall returns the operation and the path of a call from its text. Examples:
//
//	text                                   operation     path
//	AllReduce sum of 4 int8, path direct   AllReduce     direct
//	Barrier, path plain                    Barrier       plain
//	all_reduce input dtypes [Float] ...    all_reduce    (empty)   a call of PyTorch
//	"loss": Agree of 3                     value         (empty)   ranks compared a named value
func parseCall(text string) (operation, path string) {
	operation, _, _ = strings.Cut(text, " ")
	operation = strings.TrimSuffix(operation, ",")
	_, afterPath, hasPath := strings.Cut(text, ", path ")
	hasName := strings.HasPrefix(text, `"`)
	if hasPath {
		path, _, _ = strings.Cut(afterPath, ",")
	} else if hasName {
		operation = "value"
	}

	return history.MakePrintable(operation), history.MakePrintable(path)
}

// addTables adds the tables, except the rows of Paths, which it only sorts. histories[i] is the
// history of rank i, or nil if there is none.
func (b *builder) addTables(r *diff.Report, histories []*history.Rank) {
	slices.SortStableFunc(b.page.Paths, func(x, y page.Path) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Operation, y.Operation),
			cmp.Compare(x.Path, y.Path))
	})
	windowIndexes := map[windowKey]int{} // indexes in Page.Windows
	for rank, h := range histories {
		if h == nil {
			continue
		}

		for _, f := range h.Faults {
			text := history.MakePrintable(f.Text)
			b.page.Faults = addToRow(b.page.Faults, rank, f.Group, text, f.UnixMicro)
		}

		for _, c := range h.PendingCalls { // had not completed when the file was written
			text := history.MakePrintable(c.Text + ": " + c.State)
			b.page.Pending = addToRow(b.page.Pending, rank, c.Group, text, c.UnixMicro)
		}

		for _, w := range h.Windows {
			b.addWindow(windowIndexes, rank, &w)
		}
	}

	b.addMissingWindows()
	for i := range r.Sequences {
		b.addMissingCalls(&r.Sequences[i])
	}
}

// addToRow adds a rank to the row with the given group and text, and returns the rows. If there is
// no such row, it adds one. time is in microseconds since 1970, or 0 if it is unknown. A row has
// the earliest known time of its ranks.
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

// windowKey identifies a row of Windows.
type windowKey struct {
	group   string // ID of the group
	pool    string // ID of the pool
	segment int32  // number of the segment in the pool
}

// addWindow adds a rank's window to Windows. indexes maps each key to the index of its row.
func (b *builder) addWindow(indexes map[windowKey]int, rank int, w *history.Window) {
	key := windowKey{group: w.Group, pool: w.Pool, segment: w.Segment}
	index, isPresent := indexes[key]
	if !isPresent {
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

// addMissingWindows adds a row to Pending for each window that some ranks of a group have and
// others have never had. A rank that has never had any window of the group does not count, because
// it may not be in the group.
func (b *builder) addMissingWindows() {
	isMember := b.windowMembers()
	for _, w := range b.page.Windows {
		var missing []int
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

// windowMembers returns whether a rank has had a window of a group, by group and rank.
func (b *builder) windowMembers() map[string][]bool {
	isMember := map[string][]bool{}
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

	return isMember
}

// addMissingCalls adds rows to Pending for ranks that have made fewer calls than another rank of
// their group. A row describes the first missing call. For a pool, addMissingCalls does nothing.
func (b *builder) addMissingCalls(s *diff.SequenceResult) {
	if s.Class != history.Calls || len(s.Members) == 0 {
		return
	}

	longest := &s.Members[0] // the rank with the most calls
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

// countComparedCalls returns the number of a rank's calls in a group. It does not count the skipped
// calls at the beginning, which some of the other files do not contain.
func countComparedCalls(m *diff.Member) int {
	if m.Sequence == nil {
		return 0
	}

	return len(m.Sequence.Events) - m.SkippedRequests // all events of a group are calls
}
