package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// A trace lists events of a rank: requests (allocations, frees and calls) and other events. A full
// trace loses its oldest events, so the traces of two ranks can begin at different requests. For
// example, the traces of ranks 0 and 1 begin at the requests 40 and 100. To compare the same
// requests, diff must skip 60 requests of rank 0 and none of rank 1.
//
// If the events record the numbers 40 and 100, these show how many to skip. Otherwise, diff looks
// for the first requests of the shorter trace in the longer one.

// countSkipped returns how many requests to skip at the beginning of each member's trace. members
// lists the compared ranks, as indexes in ranks. The notes state what is uncertain.
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
		hasMessages := func(s *history.Sequence) bool { return s != nil && s.HasMessages }
		return !slices.ContainsFunc(m.sequences, hasMessages)
	default:
		return false
	}
}

// numberOf returns the number of an event in its pool or group.
func (m *matchedSequences) numberOf(e *history.Event) int64 {
	// For a call in a dump of PyTorch's Flight Recorder, Size is this number, and Number counts the
	// entries of all groups. For a call of a group in a trace of symmem, Size is 0.
	hasNumberInSize := m.class == history.Calls && e.Size > 0
	if hasNumberInSize {
		return e.Size
	}

	return e.Number
}

// alignByNumber implements countSkipped by the numbers of events.
func (m *matchedSequences) alignByNumber(members []int) []int {
	begin := m.firstCommonNumber(members)
	skipped := make([]int, len(members))
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			continue
		}

		for j := range s.Events {
			e := &s.Events[j]
			if e.Action.IsRequest() && m.numberOf(e) < begin {
				skipped[i]++
			}
		}
	}

	return skipped
}

// firstCommonNumber returns the number at which the last trace begins. It returns 0 if no trace may
// have lost events.
func (m *matchedSequences) firstCommonNumber(members []int) int64 {
	begin := int64(0)
	for _, r := range members {
		s := m.sequences[r]
		hasEvents := s != nil && len(s.Events) > 0
		if hasEvents && s.IsPartial { // the trace may have lost events
			begin = max(begin, m.numberOf(&s.Events[0]))
		}
	}

	return begin
}

// alignByContent implements countSkipped by a search. It skips nothing if no trace may have lost
// events, or if a member has no trace.
func (m *matchedSequences) alignByContent(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	skipped = make([]int, len(members))
	keys := make([][]requestKey, len(members)) // the requests of each member
	texts := textNumbers{}
	mayLackEvents := false
	for i, r := range members {
		s := m.sequences[r]
		if s == nil {
			return skipped, nil
		}

		if s.IsPartial {
			mayLackEvents = true
		}

		keys[i] = searchKeys(ranks[r], s, texts)
	}

	if !mayLackEvents {
		return skipped, nil
	}

	shortest := 0 // began last, if all traces end at the same request
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}

	for i := range keys {
		index, isUnique := findBeginning(keys[i], keys[shortest])
		skipped[i] = index
		if i != shortest && !isUnique {
			notes = append(notes, fmt.Sprintf("the beginning is lost, and the requests of rank %d repeat: "+
				"its trace was assumed to end at the same request as that of rank %d",
				ranks[members[i]].Number, ranks[members[shortest]].Number))
		}
	}

	return skipped, notes
}

// searchKeys returns a key for each request of a rank. These keys do not contain the numbers of
// blocks and streams, because they depend on where the trace begins.
func searchKeys(rank *history.Rank, s *history.Sequence, texts textNumbers) []requestKey {
	var keys []requestKey
	for i := range s.Events {
		e := &s.Events[i]
		if !e.Action.IsRequest() {
			continue
		}

		k := requestKey{size: e.Size, action: e.Action}
		if e.Action == history.Call {
			textIndex := e.Block // calls have no block, so this field has another meaning
			k.block = texts.findOrAdd(rank.Texts[textIndex])
		}

		keys = append(keys, k)
	}

	return keys
}

// searchedRequests is the number of requests for which findBeginning searches. Fewer requests would
// often occur in several places.
const searchedRequests = 32

// findBeginning returns the index in long at which the first requests of short occur, or 0 if they
// do not occur. If they occur several times, isUnique is false, and both traces are assumed to end
// at the same request. The index is then the occurrence that fits this assumption best.
func findBeginning(long, short []requestKey) (index int, isUnique bool) {
	beginning := short[:min(searchedRequests, len(short))]
	expected := len(long) - len(short) // the index if both traces end at the same request
	distance := func(i int) int { return max(i-expected, expected-i) }
	count := 0 // number of occurrences so far
	for i := 0; i+len(beginning) <= len(long); i++ {
		isOccurrence := slices.Equal(long[i:i+len(beginning)], beginning)
		if !isOccurrence {
			continue
		}

		count++
		if count == 1 || distance(i) < distance(index) {
			index = i
		}
	}

	return index, count <= 1
}
