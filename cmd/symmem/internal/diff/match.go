package diff

import (
	"cmp"
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// Options selects what Compare compares.
type Options struct {
	// AllPools compares all pools. Otherwise, if there are MemPools, the default pool and the pools
	// of graphs are left out.
	AllPools bool
}

// match is a pool or group with its sequence on each rank, nil where a rank has none.
type match struct {
	class     history.Class
	title     string
	sequences []*history.Sequence
}

// matchSequences finds the sequences that belong together. It returns notes, too.
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
			notes = append(notes, fmt.Sprintf("the %v was not compared, because there are MemPools; "+
				"--all-pools compares it", class))
		default:
			matches = append(matches, matchClass(ranks, class)...)
		}
	}
	return matches, notes
}

// matchClass matches the sequences of a class: by id if all ranks have the same ids, otherwise in
// the order of their first events. Groups match by id alone, because a rank need not be a member.
func matchClass(ranks []*history.Rank, class history.Class) []*match {
	ids, order := map[string]int{}, []string{}
	equal := true
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
		equal = equal && n == len(ranks)
	}
	if equal || class == history.Calls {
		return matchByID(lists, class, order)
	}
	return matchByOrder(lists, class)
}

func matchByID(lists [][]*history.Sequence, class history.Class, ids []string) []*match {
	var all []*match
	for _, id := range ids {
		m := &match{
			class: class, title: title(class, id), sequences: make([]*history.Sequence, len(lists)),
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
	most := 0
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b *history.Sequence) int {
			return cmp.Compare(firstNumber(a), firstNumber(b))
		})
		most = max(most, len(list))
	}
	var all []*match
	for n := range most {
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

// members returns the ranks that have the sequence. Of a pool these are all ranks.
func (m *match) members() []int {
	var all []int
	for i, s := range m.sequences {
		if s != nil || m.class != history.Calls {
			all = append(all, i)
		}
	}
	return all
}

// starts returns the number of requests of each member that precede the common beginning.
func (m *match) starts(members []int) []int {
	skips := make([]int, len(members))
	if m.class == history.Calls {
		first := int64(0)
		for _, r := range members {
			first = max(first, m.sequences[r].First)
		}
		for i, r := range members {
			skips[i] = int(min(first-m.sequences[r].First, int64(len(m.sequences[r].Events))))
		}
		return skips
	}
	m.alignPartial(members, skips)
	return skips
}

// alignPartial finds the common beginning of traces that may begin at different events.
func (m *match) alignPartial(members []int, skips []int) {
	loose := make([][]key, len(members))
	partial := false
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			return
		}
		partial = partial || s.Partial
		loose[i] = looseKeys(s)
	}
	if !partial {
		return
	}
	// The shortest trace begins last, if traces end together.
	last := 0
	for i := range loose {
		if len(loose[i]) < len(loose[last]) {
			last = i
		}
	}
	for i := range loose {
		skips[i] = shiftOf(loose[i], loose[last])
	}
}

// looseKeys lists what requests of traces with different beginnings have in common.
func looseKeys(s *history.Sequence) []key {
	var all []key
	for i := range s.Events {
		if e := &s.Events[i]; e.Action.IsRequest() {
			all = append(all, key{size: e.Size, action: e.Action})
		}
	}
	return all
}

// beginning is the number of requests by which beginnings of traces are recognised.
const beginning = 32

// shiftOf returns how many requests of a trace precede the beginning of another, or 0.
func shiftOf(long, short []key) int {
	window := short[:min(beginning, len(short))]
	for shift := 0; shift+len(window) <= len(long); shift++ {
		if slices.Equal(long[shift:shift+len(window)], window) {
			return shift
		}
	}
	return 0
}
