package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// A trace is a ring buffer of events, so the traces of two ranks can begin at different requests.
// If rank 0's trace begins at request 40 and rank 1's at request 100, diff skips 60 requests of
// rank 0. If the events have no common numbers, diff searches the longer trace for the first
// requests of the shorter one.

// countSkipped returns how many requests to skip at the beginning of the trace of each member.
// members holds indexes in ranks. The notes state which of these counts are uncertain.
func (m *matchedSequences) countSkipped(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	if m.haveSameNumbers() {
		return m.alignByNumber(members), nil
	}

	return m.alignByContent(ranks, members)
}

// haveSameNumbers reports whether each request has the same number on all ranks.
func (m *matchedSequences) haveSameNumbers() bool {
	switch m.class {
	case history.SymmemPool:
		return true
	case history.Calls:
		// Sends and receives also consume numbers, and ranks can make different numbers of them.
		hasMessages := func(s *history.Sequence) bool { return s != nil && s.HasMessages }
		return !slices.ContainsFunc(m.sequences, hasMessages)
	default:
		return false
	}
}

// numberOf returns the number of an event in its pool or group.
func (m *matchedSequences) numberOf(e *history.Event) int64 {
	// In PyTorch's Flight Recorder dumps, the Size of a call is its number. In symmem's traces, the
	// Size of a group's calls is 0.
	hasNumberInSize := m.class == history.Calls && e.Size > 0
	if hasNumberInSize {
		return e.Size
	}

	return e.Number
}

func (m *matchedSequences) alignByNumber(members []int) []int {
	begin := m.firstCommonNumber(members)
	skipped := make([]int, len(members))
	for i, rankIndex := range members {
		s := m.sequences[rankIndex]
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

// firstCommonNumber returns the first number that all partial traces contain, or 0 if all traces
// are complete.
func (m *matchedSequences) firstCommonNumber(members []int) int64 {
	begin := int64(0)
	for _, rankIndex := range members {
		s := m.sequences[rankIndex]
		hasEvents := s != nil && len(s.Events) > 0
		if hasEvents && s.IsPartial {
			begin = max(begin, m.numberOf(&s.Events[0]))
		}
	}

	return begin
}

// alignByContent searches for the first requests of the shortest trace in the other traces. It
// skips nothing if all traces are complete, or if a member has no trace.
func (m *matchedSequences) alignByContent(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	skipped = make([]int, len(members))
	keys := make([][]requestKey, len(members)) // the requests of each member
	texts := textNumbers{}
	isAnyPartial := false
	for i, rankIndex := range members {
		s := m.sequences[rankIndex]
		if s == nil {
			return skipped, nil
		}

		isAnyPartial = isAnyPartial || s.IsPartial
		keys[i] = searchKeys(ranks[rankIndex], s, texts)
	}

	if !isAnyPartial {
		return skipped, nil
	}

	shortest := indexOfShortest(keys)
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

func indexOfShortest(keys [][]requestKey) int {
	shortest := 0
	for i := range keys {
		if len(keys[i]) < len(keys[shortest]) {
			shortest = i
		}
	}

	return shortest
}

// searchKeys returns a key for each request of a rank. The keys omit the numbers of blocks and
// streams, because these numbers depend on where the trace begins.
func searchKeys(rank *history.Rank, s *history.Sequence, texts textNumbers) []requestKey {
	var keys []requestKey
	for i := range s.Events {
		e := &s.Events[i]
		if !e.Action.IsRequest() {
			continue
		}

		k := requestKey{size: e.Size, action: e.Action}
		if e.Action == history.Call {
			textIndex := e.Block // in rank.Texts, for a call
			k.block = texts.findOrAdd(rank.Texts[textIndex])
		}

		keys = append(keys, k)
	}

	return keys
}

// searchedRequests is the number of requests for which findBeginning searches. Shorter sequences
// often occur several times.
const searchedRequests = 32

// findBeginning returns the index in long at which the first requests of short occur, or 0 if
// they do not. If they occur several times, isUnique is false, and index is the occurrence that
// best aligns the ends of long and short.
func findBeginning(long, short []requestKey) (index int, isUnique bool) {
	beginning := short[:min(searchedRequests, len(short))]
	endAligned := len(long) - len(short)
	distance := func(i int) int { return max(i-endAligned, endAligned-i) }
	occurrences := 0
	for i := range len(long) - len(beginning) + 1 {
		if !slices.Equal(long[i:i+len(beginning)], beginning) {
			continue
		}

		occurrences++
		if occurrences == 1 || distance(i) < distance(index) {
			index = i
		}
	}

	return index, occurrences <= 1
}
