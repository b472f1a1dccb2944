package diff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
)

// Options selects what Compare compares.
type Options struct {
	// AllPools compares all pools. If it is false and there are MemPools, Compare omits the default
	// pool and the pools of graphs.
	AllPools bool
}

// match holds the sequences of a pool or group on all ranks.
type match struct {
	class     history.Class
	id        string // empty if the sequences were matched by order
	title     string
	sequences []*history.Sequence // one for each rank; nil if the rank lacks the pool or group
}

// matchSequences matches the sequences of ranks that belong to the same pool or group. notes lists
// what is not compared.
func matchSequences(ranks []*history.Rank, o Options) (matches []*match, notes []string) {
	present := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			present[s.Class] = true
		}
	}
	for class := history.DefaultPool; class <= history.Calls; class++ {
		switch {
		case !present[class]:
		case class == history.UnknownPool:
			notes = append(notes, "events whose pool is unknown were not compared")
		case !o.AllPools && present[history.MemPool] &&
			(class == history.DefaultPool || class == history.GraphPool):
			notes = append(notes, fmt.Sprintf("the %v was not compared, because there are MemPools: "+
				"use --all-pools to compare it too", class))
		default:
			matches = append(matches, matchClass(ranks, class)...)
		}
	}
	return matches, notes
}

// matchClass matches the sequences of a class by ID if all ranks have the same IDs, and otherwise
// by the order of their first events. It always matches groups and symmem's pools by ID.
func matchClass(ranks []*history.Rank, class history.Class) []*match {
	ids, order := map[string]int{}, []string{}
	sameIDs := true
	lists := make([][]*history.Sequence, len(ranks))
	for i, r := range ranks {
		for _, s := range r.Sequences {
			if s.Class != class {
				continue
			}
			lists[i] = append(lists[i], s)
			if ids[s.ID]++; ids[s.ID] == 1 {
				order = append(order, s.ID)
			}
		}
	}
	for _, n := range ids {
		sameIDs = sameIDs && n == len(ranks)
	}
	if sameIDs || class == history.Calls || class == history.SymmemPool {
		return matchByID(lists, class, order)
	}
	return matchByOrder(lists, class)
}

func matchByID(lists [][]*history.Sequence, class history.Class, ids []string) []*match {
	var all []*match
	for _, id := range ids {
		m := &match{
			class: class, id: id, title: title(class, id),
			sequences: make([]*history.Sequence, len(lists)),
		}
		for i, list := range lists {
			for _, s := range list {
				if s.ID == id {
					m.sequences[i] = s
				}
			}
		}
		all = append(all, m)
	}
	return all
}

func matchByOrder(lists [][]*history.Sequence, class history.Class) []*match {
	longest := 0
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b *history.Sequence) int {
			return cmp.Compare(firstNumber(a), firstNumber(b))
		})
		longest = max(longest, len(list))
	}
	var all []*match
	for n := range longest {
		m := &match{
			class: class, title: title(class, fmt.Sprintf("%d in order of use", n)),
			sequences: make([]*history.Sequence, len(lists)),
		}
		for i, list := range lists {
			if n < len(list) {
				m.sequences[i] = list[n]
			}
		}
		all = append(all, m)
	}
	return all
}

func firstNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return 1 << 62
	}
	return s.Events[0].Number
}

func title(class history.Class, id string) string {
	if id == "" {
		return class.String()
	}
	return class.String() + " " + history.Clean(id)
}

// members returns the ranks that have the sequence or should have it. PyTorch's pools should exist
// on all ranks, and symmem's pools on all ranks of their group.
func (m *match) members(ranks []*history.Rank) []int {
	_, group, _ := strings.Cut(m.id, groupSeparator)
	var all []int
	for i, s := range m.sequences {
		switch {
		case s != nil:
		case m.class == history.Calls:
			continue
		case m.class == history.SymmemPool && !inGroup(ranks[i], group):
			continue
		}
		all = append(all, i)
	}
	return all
}

// groupSeparator separates the number of a symmem pool from its group in a sequence's ID.
const groupSeparator = " of group "

// inGroup reports whether a rank has events of a group or of the group's pools.
func inGroup(r *history.Rank, group string) bool {
	return slices.ContainsFunc(r.Sequences, func(s *history.Sequence) bool {
		return s.Class == history.Calls && s.ID == group ||
			s.Class == history.SymmemPool && strings.HasSuffix(s.ID, groupSeparator+group)
	})
}

// skips returns the number of requests to skip on each member. The comparison begins at the first
// request that the traces of all members contain.
func (m *match) skips(members []int) []int {
	skips := make([]int, len(members))
	if m.class == history.Calls {
		first := int64(0)
		for _, r := range members {
			first = max(first, m.sequences[r].FirstCall)
		}
		for i, r := range members {
			skips[i] = int(min(first-m.sequences[r].FirstCall, int64(len(m.sequences[r].Events))))
		}
		return skips
	}
	if m.class == history.SymmemPool {
		m.alignNumbers(members, skips)
	} else {
		m.alignPartial(members, skips)
	}
	return skips
}

// alignNumbers sets skips for a symmem pool, whose events have the same numbers on all ranks.
func (m *match) alignNumbers(members []int, skips []int) {
	begin := int64(0)
	for _, r := range members {
		if s := m.sequences[r]; s != nil && s.Partial && len(s.Events) > 0 {
			begin = max(begin, s.Events[0].Number)
		}
	}
	for i, r := range members {
		if m.sequences[r] == nil {
			continue
		}
		for j := range m.sequences[r].Events {
			if e := &m.sequences[r].Events[j]; e.Number < begin && e.Action.IsRequest() {
				skips[i]++
			}
		}
	}
}

// alignPartial sets skips for a pool whose events have no common numbers. It looks for the first
// requests of the shortest trace in the other traces.
func (m *match) alignPartial(members []int, skips []int) {
	keys := make([][]key, len(members))
	partial := false
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			return
		}
		partial = partial || s.Partial
		keys[i] = simpleKeys(s)
	}
	if !partial {
		return
	}
	shortest := 0 // begins last if all traces end at the same request
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}
	for i := range keys {
		skips[i] = findBeginning(keys[i], keys[shortest])
	}
}

// simpleKeys returns a key for each request. The keys omit the numbers of blocks and streams, which
// depend on where the trace begins.
func simpleKeys(s *history.Sequence) []key {
	var all []key
	for i := range s.Events {
		if e := &s.Events[i]; e.Action.IsRequest() {
			all = append(all, key{size: e.Size, action: e.Action})
		}
	}
	return all
}

// beginningLength is the number of requests by which findBeginning recognizes a trace.
const beginningLength = 32

// findBeginning returns the index in long at which the first requests of short occur, or 0 if they
// do not occur.
func findBeginning(long, short []key) int {
	beginning := short[:min(beginningLength, len(short))]
	for at := 0; at+len(beginning) <= len(long); at++ {
		if slices.Equal(long[at:at+len(beginning)], beginning) {
			return at
		}
	}
	return 0
}
