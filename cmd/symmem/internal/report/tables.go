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

// The page has four tables, such as these. A path is a way to execute a call:
//
//	Paths    group world, AllReduce on the direct path: 100 calls on rank 0, 99 on rank 1
//	Windows  group world, segment 5 of a pool: registered on rank 0
//	Pending  rank 1: segment 5 is not registered
//	Faults   rank 0: the group world has failed

// pathKey identifies a row of Paths.
type pathKey struct{ group, operation, path string }

// countPaths adds the calls of one member of a group to Paths.
func (b *builder) countPaths(group *diff.SequenceResult, member *diff.Member) {
	texts := member.History.Texts
	for i := range member.Sequence.Events {
		call := &member.Sequence.Events[i]
		textIndex := int(call.Block) // the number of a block in other events
		hasText := textIndex >= 0 && textIndex < len(texts)
		if !hasText {
			continue
		}

		operation, path := parseCall(texts[textIndex])
		row := b.findOrAddPath(pathKey{group: group.Title, operation: operation, path: path})
		row.Calls[member.RankIndex]++
		row.Bytes[member.RankIndex] += call.Bytes
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
//	all_reduce input dtypes [Float] ...    all_reduce
//	"loss": Agree of 3                     value         (an agreed value named loss)
func parseCall(text string) (operation, path string) {
	_, afterPath, hasPath := strings.Cut(text, ", path ")
	path, _, _ = strings.Cut(afterPath, ",")
	isNamedValue := !hasPath && strings.HasPrefix(text, `"`)
	if isNamedValue {
		operation = "value"
	} else {
		operation, _, _ = strings.Cut(text, " ")
		operation = strings.TrimSuffix(operation, ",")
	}

	return history.MakePrintable(operation), history.MakePrintable(path)
}

// addTables sorts Paths and adds the other tables. histories contains nil for ranks that were not
// compared.
func (b *builder) addTables(r *diff.Report, histories []*history.Rank) {
	slices.SortStableFunc(b.page.Paths, comparePaths)
	windowIndexes := map[windowKey]int{} // indexes in Page.Windows
	for rankIndex, h := range histories {
		if h == nil {
			continue
		}

		for _, f := range h.Faults {
			text := history.MakePrintable(f.Text)
			b.page.Faults = addToRow(b.page.Faults, rankIndex, f.Group, text, f.UnixMicro)
		}

		for _, c := range h.PendingCalls {
			text := history.MakePrintable(c.Text + ": " + c.State)
			b.page.Pending = addToRow(b.page.Pending, rankIndex, c.Group, text, c.UnixMicro)
		}

		for _, w := range h.Windows {
			b.addWindow(windowIndexes, rankIndex, &w)
		}
	}

	b.addMissingWindows()
	for i := range r.Sequences {
		b.addMissingRequests(&r.Sequences[i])
	}
}

func comparePaths(x, y page.Path) int {
	return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Operation, y.Operation),
		cmp.Compare(x.Path, y.Path))
}

// addToRow adds a rank to the row with the given group and text, or appends a row. The row's time
// is the earliest of its ranks, in microseconds since 1970, or 0 if unknown.
func addToRow(
	rows []page.Row, rankIndex int, group, text string, unixMicro int64,
) []page.Row {
	for i := range rows {
		row := &rows[i]
		if row.Group != group || row.Text != text {
			continue
		}

		if !slices.Contains(row.Ranks, rankIndex) {
			row.Ranks = append(row.Ranks, rankIndex)
		}

		isKnown := unixMicro != 0
		isEarlier := row.Time == 0 || unixMicro < row.Time
		if isKnown && isEarlier {
			row.Time = unixMicro
		}

		return rows
	}

	return append(rows, page.Row{
		Ranks: []int{rankIndex}, Group: group, Text: text, Time: unixMicro,
	})
}

// windowKey identifies a row of Windows: a segment of memory that ranks have registered.
type windowKey struct {
	group   string // ID of the group
	pool    string // ID of the pool
	segment int32  // number of the segment in the pool
}

// addWindow adds a rank's window to Windows. indexes contains the index of each row.
func (b *builder) addWindow(indexes map[windowKey]int, rankIndex int, w *history.Window) {
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

	b.page.Windows[index].States[rankIndex] = state
}

// addMissingWindows adds a row to Pending for each window that is registered on some ranks, and
// absent on others that use windows in the same group.
func (b *builder) addMissingWindows() {
	usesWindows := b.findWindowUsers()
	for _, w := range b.page.Windows {
		var missing []int
		for rankIndex, state := range w.States {
			if usesWindows[w.Group][rankIndex] && state == page.Absent {
				missing = append(missing, rankIndex)
			}
		}

		isRegistered := slices.Contains(w.States, page.Registered)
		if isRegistered && len(missing) > 0 {
			b.page.Pending = append(b.page.Pending, page.Row{
				Ranks: missing, Group: w.Group,
				Text: fmt.Sprintf("segment %d of pool %s is not registered; other ranks have registered it",
					w.Segment, w.Pool),
			})
		}
	}
}

// findWindowUsers returns whether ranks have ever registered a window, by group and rank index.
func (b *builder) findWindowUsers() map[string][]bool {
	usesWindows := map[string][]bool{}
	for _, w := range b.page.Windows {
		if usesWindows[w.Group] == nil {
			usesWindows[w.Group] = make([]bool, len(w.States))
		}

		for rankIndex, state := range w.States {
			if state != page.Absent {
				usesWindows[w.Group][rankIndex] = true
			}
		}
	}

	return usesWindows
}

// addMissingRequests adds to Pending the first missing request of each member with fewer requests
// than the member with the most, the leader.
func (b *builder) addMissingRequests(group *diff.SequenceResult) {
	if group.Class != history.Calls || len(group.Members) == 0 {
		return
	}

	leader := &group.Members[0]
	for i := range group.Members {
		member := &group.Members[i]
		if len(comparedRequests(member)) > len(comparedRequests(leader)) {
			leader = member
		}
	}

	allRequests := comparedRequests(leader)
	for i := range group.Members {
		member := &group.Members[i]
		count := len(comparedRequests(member))
		missing := allRequests[count:]
		if len(missing) == 0 {
			continue
		}

		text := fmt.Sprintf("request %d is missing: %s; rank %d has made %s", count,
			leader.History.EventText(&missing[0]), leader.History.Number,
			ranklist.Plural(len(missing), "more request"))
		b.page.Pending = addToRow(
			b.page.Pending, member.RankIndex, group.Title, text, missing[0].UnixMicro)
	}
}

// comparedRequests excludes requests that are older than the traces of other ranks.
func comparedRequests(member *diff.Member) []history.Event {
	if member.Sequence == nil {
		return nil
	}

	return member.Sequence.Events[member.SkippedRequests:]
}
