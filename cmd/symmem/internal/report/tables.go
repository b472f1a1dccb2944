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

// The page has four tables. In this example, ranks 0 and 1 wait for rank 2, which has not
// registered segment 5 of a pool:
//
//	Paths    group world, AllReduce on the direct path: 100 calls on ranks 0 and 1, 99 on rank 2
//	Windows  segment 5 on ranks 0 and 1, in the group world
//	Pending  rank 2: segment 5 is not registered; request 99 is missing
//	Faults   ranks 0 and 1: the group world has failed

// pathKey identifies a row of Paths. A path is a way to execute a call, such as direct or plain.
type pathKey struct{ group, operation, path string }

// countPaths adds the calls of one member of a group to Paths.
func (b *builder) countPaths(group *diff.SequenceResult, member *diff.Member) {
	texts := member.History.Texts
	rank := member.RankIndex
	for i := range member.Sequence.Events {
		call := &member.Sequence.Events[i]
		textIndex := int(call.Block) // Block holds the text index of a call
		hasText := textIndex >= 0 && textIndex < len(texts)
		if !hasText {
			continue
		}

		operation, path := parseCall(texts[textIndex])
		row := b.findOrAddPath(pathKey{group: group.Title, operation: operation, path: path})
		row.Calls[rank]++
		row.Bytes[rank] += call.Bytes
	}
}

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

// parseCall parses the text of a call:
//
//	text                                   operation     path
//	AllReduce sum of 4 int8, path direct   AllReduce     direct
//	Barrier, path plain                    Barrier       plain
//	all_reduce input dtypes [Float] ...    all_reduce    (empty)   PyTorch
//	"loss": Agree of 3                     value         (empty)   comparison of a named value
func parseCall(text string) (operation, path string) {
	operation, _, _ = strings.Cut(text, " ")
	operation = strings.TrimSuffix(operation, ",")
	_, afterPath, hasPath := strings.Cut(text, ", path ")
	path, _, _ = strings.Cut(afterPath, ",")
	isNamedValue := !hasPath && strings.HasPrefix(text, `"`)
	if isNamedValue {
		operation = "value"
	}

	return history.MakePrintable(operation), history.MakePrintable(path)
}

// addTables sorts Paths and adds the other tables. histories has an element for each of Page.Ranks,
// or nil for a rank without a history.
func (b *builder) addTables(r *diff.Report, histories []*history.Rank) {
	slices.SortStableFunc(b.page.Paths, comparePaths)
	windowIndexes := map[windowKey]int{} // indexes in Page.Windows
	for rank, h := range histories {
		if h == nil {
			continue
		}

		for _, f := range h.Faults {
			text := history.MakePrintable(f.Text)
			b.page.Faults = addToRow(b.page.Faults, rank, f.Group, text, f.UnixMicro)
		}

		for _, c := range h.PendingCalls {
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

func comparePaths(x, y page.Path) int {
	return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Operation, y.Operation),
		cmp.Compare(x.Path, y.Path))
}

// addToRow adds a rank to the row with the given group and text, or appends a row. A row keeps the
// earliest known time of its ranks, in microseconds since 1970. Time 0 is unknown.
func addToRow(rows []page.Row, rank int, group, text string, time int64) []page.Row {
	for i := range rows {
		row := &rows[i]
		if row.Group != group || row.Text != text {
			continue
		}

		if !slices.Contains(row.Ranks, rank) {
			row.Ranks = append(row.Ranks, rank)
		}

		isKnown := time != 0
		isEarliest := row.Time == 0 || time < row.Time
		if isKnown && isEarliest {
			row.Time = time
		}

		return rows
	}

	return append(rows, page.Row{Ranks: []int{rank}, Group: group, Text: text, Time: time})
}

// windowKey identifies a row of Windows, a memory segment that ranks have registered with a group.
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

// addMissingWindows adds a row to Pending for each window that is registered on some members of a
// group and was never registered on others.
func (b *builder) addMissingWindows() {
	isMember := b.windowMembers() // by group and rank
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

// windowMembers returns the known members of each group, ranks that have ever registered a window.
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

// addMissingCalls adds the first missing call of each rank that is behind the leader, the member of
// the group with the most calls.
func (b *builder) addMissingCalls(group *diff.SequenceResult) {
	isPool := group.Class != history.Calls
	if isPool || len(group.Members) == 0 {
		return
	}

	leader := &group.Members[0]
	for i := range group.Members {
		member := &group.Members[i]
		if countComparedCalls(member) > countComparedCalls(leader) {
			leader = member
		}
	}

	leaderCount := countComparedCalls(leader)
	for i := range group.Members {
		member := &group.Members[i]
		count := countComparedCalls(member)
		missingCount := leaderCount - count
		if missingCount == 0 {
			continue
		}

		firstMissing := &leader.Sequence.Events[leader.SkippedRequests+count]
		text := fmt.Sprintf("request %d is missing: %s; rank %d has made %s", count,
			leader.History.EventText(firstMissing), leader.History.Number,
			ranklist.Plural(missingCount, "more request"))
		b.page.Pending = addToRow(
			b.page.Pending, member.RankIndex, group.Title, text, firstMissing.UnixMicro)
	}
}

// countComparedCalls excludes calls before the start of the other ranks' traces.
func countComparedCalls(member *diff.Member) int {
	if member.Sequence == nil {
		return 0
	}

	return len(member.Sequence.Events) - member.SkippedRequests
}
