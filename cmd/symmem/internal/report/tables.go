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

type pathKey struct{ group, operation, path string }

// countPaths counts the calls of a rank by group, operation and path. (The path is the way in which
// symmem executes a collective.)
func (b *builder) countPaths(s *diff.Sequence, m *diff.Member) {
	for i := range m.Sequence.Events {
		e := &m.Sequence.Events[i]
		if int(e.Block) >= len(m.History.Texts) || e.Block < 0 {
			continue
		}
		operation, path := parseCall(m.History.Texts[e.Block])
		key := pathKey{s.Title, operation, path}
		at, ok := b.paths[key]
		if !ok {
			at = len(b.page.Paths)
			b.paths[key] = at
			b.page.Paths = append(b.page.Paths, page.Path{
				Group: key.group, Operation: operation, Path: path,
				Calls: make([]int64, len(b.page.Ranks)), Bytes: make([]int64, len(b.page.Ranks)),
			})
		}
		b.page.Paths[at].Calls[m.Rank]++
		b.page.Paths[at].Bytes[m.Rank] += e.Bytes
	}
}

// parseCall returns the operation and the path from the text of a call. The path is empty if the
// call is not a collective of symmem.
func parseCall(text string) (operation, path string) {
	operation, _, _ = strings.Cut(text, " ")
	operation = strings.TrimSuffix(operation, ",")
	if _, rest, ok := strings.Cut(text, ", path "); ok {
		path, _, _ = strings.Cut(rest, ",")
	} else if quoted := strings.HasPrefix(text, `"`); quoted {
		operation = "value"
	}
	return history.Clean(operation), history.Clean(path)
}

// addTables fills in the tables of windows, pending calls and faults.
func (b *builder) addTables(r *diff.Report, ranks []*history.Rank) {
	slices.SortStableFunc(b.page.Paths, func(x, y page.Path) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(x.Operation, y.Operation),
			cmp.Compare(x.Path, y.Path))
	})
	windows := map[windowKey]int{}
	for i, rank := range ranks {
		if rank == nil {
			continue
		}
		for _, f := range rank.Faults {
			b.page.Faults = addRow(b.page.Faults, i, f.Group, history.Clean(f.Text), f.UnixMicro)
		}
		for _, c := range rank.Pending {
			b.page.Pending = addRow(b.page.Pending, i, c.Group,
				fmt.Sprintf("%s: %s", history.Clean(c.Text), history.Clean(c.State)), c.UnixMicro)
		}
		for _, w := range rank.Windows {
			b.addWindow(windows, i, &w)
		}
	}
	b.addUnregistered()
	for i := range r.Sequences {
		b.addLagging(&r.Sequences[i])
	}
}

// addRow adds a rank to the row with the given group and text. If there is no such row, addRow adds
// the row. The time of a row is the earliest time of its ranks.
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

type windowKey struct {
	group, pool string
	segment     int32
}

func (b *builder) addWindow(rows map[windowKey]int, rank int, w *history.Window) {
	key := windowKey{w.Group, w.Pool, w.Segment}
	at, ok := rows[key]
	if !ok {
		at = len(b.page.Windows)
		rows[key] = at
		b.page.Windows = append(b.page.Windows, page.Window{
			Group: history.Clean(w.Group), Pool: history.Clean(w.Pool), Segment: int(w.Segment),
			Bytes: w.Bytes, States: make([]page.State, len(b.page.Ranks)),
		})
	}
	state := page.Registered
	if w.Deregistered {
		state = page.Deregistered
	}
	b.page.Windows[at].States[rank] = state
}

// addUnregistered adds a pending row for each window that some members of a group have and others
// never had. A rank is considered a member if it has registered any segment with the group.
func (b *builder) addUnregistered() {
	members := map[string][]bool{}
	for _, w := range b.page.Windows {
		if members[w.Group] == nil {
			members[w.Group] = make([]bool, len(w.States))
		}
		for i, state := range w.States {
			members[w.Group][i] = members[w.Group][i] || state != page.Absent
		}
	}
	for _, w := range b.page.Windows {
		var missing []int
		for i, state := range w.States {
			if members[w.Group][i] && state == page.Absent {
				missing = append(missing, i)
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

// addLagging adds a pending row for each rank that has made fewer calls than others of its group.
// The row shows the first missing call.
func (b *builder) addLagging(s *diff.Sequence) {
	if s.Class != history.Calls {
		return
	}
	longest := -1
	for i := range s.Members {
		if longest < 0 || calls(&s.Members[i]) > calls(&s.Members[longest]) {
			longest = i
		}
	}
	for i := range s.Members {
		m, ahead := &s.Members[i], &s.Members[longest]
		n := calls(m)
		if n == calls(ahead) {
			continue
		}
		e := &ahead.Sequence.Events[n+ahead.Skipped]
		text := fmt.Sprintf("request %d is missing: %s; rank %d has made %s", n,
			ahead.History.Text(e), ahead.History.Number, ranklist.Plural(calls(ahead)-n, "more request"))
		b.page.Pending = addRow(b.page.Pending, m.Rank, s.Title, text, e.UnixMicro)
	}
}

// calls returns how many of a member's calls were compared.
func calls(m *diff.Member) int {
	if m.Sequence == nil {
		return 0
	}
	return len(m.Sequence.Events) - m.Skipped
}
