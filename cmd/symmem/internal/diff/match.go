package diff

import (
	"cmp"
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// Options selects what Compare compares.
type Options struct {
	// AllPools includes the default pool and the pools of graphs even if there are MemPools.
	AllPools bool
}

// matchedSequences holds the sequences (lists of events) of one pool or group on all ranks.
type matchedSequences struct {
	class     history.Class
	id        string // empty if the sequences were matched by order
	title     string
	sequences []*history.Sequence // one for each rank; nil if the rank lacks the pool or group
}

// matchSequences matches the sequences of the same pool or group. notes lists what is not compared.
func matchSequences(
	ranks []*history.Rank, o Options,
) (matches []*matchedSequences, notes []string) {
	isPresent := map[history.Class]bool{}
	for _, r := range ranks {
		for _, s := range r.Sequences {
			isPresent[s.Class] = true
		}
	}
	for class := history.DefaultPool; class <= history.Calls; class++ {
		switch {
		case !isPresent[class]:
		case class == history.UnknownPool:
			notes = append(notes, "events whose pool is unknown were not compared")
		case !o.AllPools && isPresent[history.MemPool] &&
			(class == history.DefaultPool || class == history.GraphPool):
			notes = append(notes, fmt.Sprintf("the %v was not compared, because there are MemPools: "+
				"use --all-pools to compare it too", class))
		default:
			matches = append(matches, matchClass(ranks, class)...)
		}
	}
	return matches, notes
}

// matchClass matches the sequences of a class. It uses their IDs for groups, for symmem's pools,
// and if all ranks have the same IDs. Otherwise, it uses the order of their first events.
func matchClass(ranks []*history.Rank, class history.Class) []*matchedSequences {
	idCounts, ids := map[string]int{}, []string{}
	haveSameIDs := true
	lists := make([][]*history.Sequence, len(ranks))
	for i, r := range ranks {
		for _, s := range r.Sequences {
			if s.Class != class {
				continue
			}
			lists[i] = append(lists[i], s)
			if idCounts[s.ID]++; idCounts[s.ID] == 1 {
				ids = append(ids, s.ID)
			}
		}
	}
	for _, count := range idCounts {
		haveSameIDs = haveSameIDs && count == len(ranks)
	}
	if haveSameIDs || class == history.Calls || class == history.SymmemPool {
		return matchByID(lists, class, ids)
	}
	return matchByOrder(lists, class)
}

func matchByID(lists [][]*history.Sequence, class history.Class, ids []string) []*matchedSequences {
	var all []*matchedSequences
	for _, id := range ids {
		m := &matchedSequences{
			class: class, id: id, title: sequenceTitle(class, id),
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

func matchByOrder(lists [][]*history.Sequence, class history.Class) []*matchedSequences {
	longest := 0
	for _, list := range lists {
		slices.SortStableFunc(list, func(a, b *history.Sequence) int {
			return cmp.Compare(firstEventNumber(a), firstEventNumber(b))
		})
		longest = max(longest, len(list))
	}
	var all []*matchedSequences
	for position := range longest {
		m := &matchedSequences{
			class: class, title: sequenceTitle(class, fmt.Sprintf("%d in order of use", position)),
			sequences: make([]*history.Sequence, len(lists)),
		}
		for i, list := range lists {
			if position < len(list) {
				m.sequences[i] = list[position]
			}
		}
		all = append(all, m)
	}
	return all
}

func firstEventNumber(s *history.Sequence) int64 {
	if len(s.Events) == 0 {
		return 1 << 62
	}
	return s.Events[0].Number
}

func sequenceTitle(class history.Class, id string) string {
	if id == "" {
		return class.String()
	}
	return class.String() + " " + history.MakePrintable(id)
}

// countSkipped returns the number of requests to skip on each member, so that the comparison begins
// at the first request that all traces contain.
func (m *matchedSequences) countSkipped(members []int) []int {
	skipped := make([]int, len(members))
	if m.class == history.Calls {
		first := int64(0)
		for _, r := range members {
			if s := m.sequences[r]; s != nil {
				first = max(first, s.FirstCallNumber)
			}
		}
		for i, r := range members {
			if s := m.sequences[r]; s != nil {
				skipped[i] = int(min(first-s.FirstCallNumber, int64(len(s.Events))))
			}
		}
		return skipped
	}
	if m.class == history.SymmemPool {
		m.alignByNumber(members, skipped)
	} else {
		m.alignByContent(members, skipped)
	}
	return skipped
}

// alignByNumber sets skipped for a symmem pool, whose events have the same numbers on all ranks.
func (m *matchedSequences) alignByNumber(members []int, skipped []int) {
	begin := int64(0)
	for _, r := range members {
		if s := m.sequences[r]; s != nil && s.IsPartial && len(s.Events) > 0 {
			begin = max(begin, s.Events[0].Number)
		}
	}
	for i, r := range members {
		if m.sequences[r] == nil {
			continue
		}
		for j := range m.sequences[r].Events {
			if e := &m.sequences[r].Events[j]; e.Number < begin && e.Action.IsRequest() {
				skipped[i]++
			}
		}
	}
}

// alignByContent sets skipped for a pool whose events have different numbers on each rank. It looks
// for the first requests of the shortest trace in the other traces.
func (m *matchedSequences) alignByContent(members []int, skipped []int) {
	keys := make([][]requestKey, len(members))
	isPartial := false
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			return
		}
		isPartial = isPartial || s.IsPartial
		keys[i] = positionIndependentKeys(s)
	}
	if !isPartial {
		return
	}
	shortest := 0 // the last to begin, if all traces end at the same request
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}
	for i := range keys {
		skipped[i] = findBeginning(keys[i], keys[shortest])
	}
}

// positionIndependentKeys returns a key for each request, without the numbers of blocks and
// streams, which depend on where the trace begins.
func positionIndependentKeys(s *history.Sequence) []requestKey {
	var all []requestKey
	for i := range s.Events {
		if e := &s.Events[i]; e.Action.IsRequest() {
			all = append(all, requestKey{size: e.Size, action: e.Action})
		}
	}
	return all
}

// matchedBeginning is the number of requests that findBeginning compares.
const matchedBeginning = 32

// findBeginning returns the index in long at which the first requests of short occur, or 0.
func findBeginning(long, short []requestKey) int {
	beginning := short[:min(matchedBeginning, len(short))]
	for index := 0; index+len(beginning) <= len(long); index++ {
		if slices.Equal(long[index:index+len(beginning)], beginning) {
			return index
		}
	}
	return 0
}
