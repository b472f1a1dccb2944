package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// countSkipped returns the number of requests to skip at the beginning of each member's trace, so
// that the comparison begins at the first request that all traces contain. members holds indexes
// in ranks. The notes state what is uncertain.
func (m *matchedSequences) countSkipped(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	skipped = make([]int, len(members))
	if m.haveSameNumbers() {
		m.alignByNumber(members, skipped)
		return skipped, nil
	}
	return skipped, m.alignByContent(ranks, members, skipped)
}

// haveSameNumbers reports whether the same request has the same number on all ranks.
func (m *matchedSequences) haveSameNumbers() bool {
	switch m.class {
	case history.SymmemPool:
		return true
	case history.Calls:
		return !slices.ContainsFunc(m.sequences, func(s *history.Sequence) bool {
			return s != nil && s.HasMessages
		})
	default:
		return false
	}
}

// numberOf returns the number of an event in its pool or group. Package flight stores the number of
// a call in Size.
func numberOf(e *history.Event) int64 {
	if e.Action == history.Call && e.Size > 0 {
		return e.Size
	}
	return e.Number
}

// alignByNumber sets skipped[i] to the number of requests of member i before the first number that
// all traces contain.
func (m *matchedSequences) alignByNumber(members, skipped []int) {
	begin := int64(0) // the first number that all traces contain
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
			e := &m.sequences[r].Events[j]
			if numberOf(e) < begin && e.Action.IsRequest() {
				skipped[i]++
			}
		}
	}
}

// alignByContent sets skipped[i] to the index of the request of member i at which the requests of
// the shortest trace begin. If that is uncertain, because requests repeat, it adds a note.
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
	shortest := 0 // the trace that began last, if all traces end at the same request
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}
	for i := range keys {
		var isUnique bool
		skipped[i], isUnique = findBeginning(keys[i], keys[shortest])
		if !isUnique && i != shortest {
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

// findBeginning returns the index in long at which the first requests of short occur, or 0 if
// they do not occur. If they occur several times, isUnique is false, and index is the occurrence
// that is closest to the index at which both traces would end at the same request.
func findBeginning(long, short []requestKey) (index int, isUnique bool) {
	beginning := short[:min(matchedBeginning, len(short))]
	sameEnd := len(long) - len(short)
	distance := func(i int) int { return max(i-sameEnd, sameEnd-i) }
	count := 0
	for i := 0; i+len(beginning) <= len(long); i++ {
		if !slices.Equal(long[i:i+len(beginning)], beginning) {
			continue
		}
		count++
		if count == 1 || distance(i) < distance(index) {
			index = i
		}
	}
	return index, count <= 1
}
