package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// countSkipped returns the number of requests to skip at the beginning of each member's trace, so
// that the comparison begins at the first request that all traces contain. Traces can begin at
// different requests, because a full trace loses its oldest events. members holds indexes in ranks.
// The notes state what is uncertain.
func (m *matchedSequences) countSkipped(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	if m.haveSameNumbers() {
		return m.alignByNumber(members), nil
	}

	return m.alignByContent(ranks, members)
}

// haveSameNumbers reports whether the same request has the same number on all ranks.
func (m *matchedSequences) haveSameNumbers() bool {
	switch m.class {
	case history.SymmemPool:
		return true
	case history.Calls:
		// Sends and receives have numbers too, and ranks can have different numbers of them.
		return !slices.ContainsFunc(m.sequences, func(s *history.Sequence) bool {
			return s != nil && s.HasMessages
		})
	default:
		return false
	}
}

// numberOf returns the number of an event in its pool or group. For a collective in a dump of the
// Flight Recorder, the number is in Size. Event.Number counts the entries of all groups there.
func numberOf(e *history.Event) int64 {
	if e.Action == history.Call && e.Size > 0 {
		return e.Size
	}

	return e.Number
}

// alignByNumber returns, for each member, the number of its requests before the first number that
// all traces contain.
func (m *matchedSequences) alignByNumber(members []int) []int {
	begin := int64(0) // the first number that all traces contain
	for _, r := range members {
		s := m.sequences[r]
		if s == nil || len(s.Events) == 0 {
			continue
		}

		if s.IsPartial {
			begin = max(begin, numberOf(&s.Events[0]))
		}
	}

	skipped := make([]int, len(members))
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			continue
		}

		for j := range s.Events {
			e := &s.Events[j]
			if numberOf(e) < begin && e.Action.IsRequest() {
				skipped[i]++
			}
		}
	}

	return skipped
}

// alignByContent returns, for each member, the index of the request at which the requests of the
// shortest trace begin. If that is uncertain, because requests repeat, it adds a note. If no trace
// has lost its beginning, or a member has no trace, the indexes are 0.
func (m *matchedSequences) alignByContent(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	skipped = make([]int, len(members))
	keys := make([][]requestKey, len(members)) // the requests of each member
	texts := textNumbers{}
	isPartial := false // whether a trace may have lost its beginning
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			return skipped, nil
		}

		if s.IsPartial {
			isPartial = true
		}

		keys[i] = positionIndependentKeys(ranks[r], s, texts)
	}

	if !isPartial {
		return skipped, nil
	}

	shortest := 0 // the trace that began last, if all traces end at the same request
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}

	for i := range keys {
		index, isUnique := findBeginning(keys[i], keys[shortest])
		skipped[i] = index
		if !isUnique && i != shortest {
			notes = append(notes, fmt.Sprintf("the beginning is lost, and the requests of rank %d repeat: "+
				"its trace was assumed to end at the same request as that of rank %d",
				ranks[members[i]].Number, ranks[members[shortest]].Number))
		}
	}

	return skipped, notes
}

// positionIndependentKeys returns a key for each request. The keys do not contain the numbers of
// blocks and streams, which depend on where the trace begins.
func positionIndependentKeys(
	rank *history.Rank, s *history.Sequence, texts textNumbers,
) []requestKey {
	var keys []requestKey
	for i := range s.Events {
		e := &s.Events[i]
		if !e.Action.IsRequest() {
			continue
		}

		k := requestKey{size: e.Size, action: e.Action}
		if e.Action == history.Call {
			k.block = texts.findOrAdd(rank.Texts[e.Block]) // for calls, the number of the text
		}

		keys = append(keys, k)
	}

	return keys
}

// matchedBeginning is the number of requests that findBeginning compares. Fewer requests would
// often occur in several places.
const matchedBeginning = 32

// findBeginning returns the index in long at which the first requests of short occur, or 0 if
// they do not occur. If they occur several times, isUnique is false. In this case, it returns the
// index with which the ends of both traces are closest to each other.
func findBeginning(long, short []requestKey) (index int, isUnique bool) {
	beginning := short[:min(matchedBeginning, len(short))]
	sameEnd := len(long) - len(short) // the index with which both traces end at the same request
	distance := func(i int) int { return max(i-sameEnd, sameEnd-i) }
	count := 0 // number of occurrences so far
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
