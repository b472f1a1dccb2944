package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// countSkipped returns the number of requests to skip on each member, so that the comparison begins
// at the first request that all traces contain. The notes state what is uncertain.
func (m *matchedSequences) countSkipped(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	skipped = make([]int, len(members))
	if m.haveNumbers() {
		m.alignByNumber(members, skipped)
		return skipped, nil
	}
	return skipped, m.alignByContent(ranks, members, skipped)
}

// haveNumbers reports whether requests have the same numbers on all ranks.
func (m *matchedSequences) haveNumbers() bool {
	return m.class == history.SymmemPool || m.class == history.Calls &&
		!slices.ContainsFunc(m.sequences, func(s *history.Sequence) bool {
			return s != nil && s.HasMessages
		})
}

// numberOf returns the number of an event in its pool or group. Package flight stores the number of
// a call in Size.
func numberOf(e *history.Event) int64 {
	if e.Action == history.Call && e.Size > 0 {
		return e.Size
	}
	return e.Number
}

func (m *matchedSequences) alignByNumber(members, skipped []int) {
	begin := int64(0)
	for _, r := range members {
		if s := m.sequences[r]; s != nil && s.IsPartial && len(s.Events) > 0 {
			begin = max(begin, numberOf(&s.Events[0]))
		}
	}
	for i, r := range members {
		if m.sequences[r] == nil {
			continue
		}
		for j := range m.sequences[r].Events {
			if e := &m.sequences[r].Events[j]; numberOf(e) < begin && e.Action.IsRequest() {
				skipped[i]++
			}
		}
	}
}

// alignByContent looks for the first requests of the shortest trace in the other traces.
func (m *matchedSequences) alignByContent(
	ranks []*history.Rank, members, skipped []int,
) (notes []string) {
	keys := make([][]requestKey, len(members))
	isPartial, texts := false, textNumbers{}
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			return nil
		}
		isPartial = isPartial || s.IsPartial
		keys[i] = positionIndependentKeys(ranks[r], s, texts)
	}
	if !isPartial {
		return nil
	}
	shortest := 0 // began last, if all traces end at the same request
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}
	for i := range keys {
		var isUnique bool
		if skipped[i], isUnique = findBeginning(keys[i], keys[shortest]); !isUnique && i != shortest {
			notes = append(notes, fmt.Sprintf("the beginning is lost, and the requests of rank %d repeat: "+
				"its trace was assumed to end at the same request as that of rank %d",
				ranks[members[i]].Number, ranks[members[shortest]].Number))
		}
	}
	return notes
}

// positionIndependentKeys returns a key for each request, without the numbers of blocks and
// streams, which depend on where the trace begins.
func positionIndependentKeys(
	rank *history.Rank, s *history.Sequence, texts textNumbers,
) []requestKey {
	var all []requestKey
	for i := range s.Events {
		e := &s.Events[i]
		if !e.Action.IsRequest() {
			continue
		}
		k := requestKey{size: e.Size, action: e.Action}
		if e.Action == history.Call {
			k.block = texts.findOrAdd(rank.Texts[e.Block])
		}
		all = append(all, k)
	}
	return all
}

// matchedBeginning is the number of requests that findBeginning compares.
const matchedBeginning = 32

// findBeginning returns the index in long at which the first requests of short occur, or 0. If they
// occur several times, it chooses the index at which the ends are closest to each other.
func findBeginning(long, short []requestKey) (index int, isUnique bool) {
	beginning := short[:min(matchedBeginning, len(short))]
	count, best := 0, len(long)-len(short) // best is the index at which both have the same end
	for i := 0; i+len(beginning) <= len(long); i++ {
		if !slices.Equal(long[i:i+len(beginning)], beginning) {
			continue
		}
		if count++; count == 1 || max(i-best, best-i) < max(index-best, best-index) {
			index = i
		}
	}
	return index, count <= 1
}
