package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// countSkipped returns how many requests of each member to skip, so that all begin with the same
// request: a trace lacks its oldest requests if they did not fit. members holds indexes in ranks.
// The notes state which counts are uncertain.
func (m *match) countSkipped(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	if m.haveSameNumbers() {
		return m.alignByNumber(members), nil
	}

	return m.alignByContent(ranks, members)
}

// haveSameNumbers reports whether each request has the same number on all ranks.
func (m *match) haveSameNumbers() bool {
	switch m.class {
	case history.SymmemPool:
		return true
	case history.Calls:
		// Sends and receives are numbered too, but not the same on all ranks.
		hasMessages := func(s *history.Sequence) bool { return s != nil && s.HasMessages }
		return !slices.ContainsFunc(m.sequences, hasMessages)
	default:
		return false
	}
}

// numberOf returns the number of an event in its pool or group.
func (m *match) numberOf(e *history.Event) int64 {
	isFlightRecorderCall := m.class == history.Calls && e.Size > 0
	if isFlightRecorderCall {
		return e.Size // see history.Event
	}

	return e.Number
}

// alignByNumber skips the requests before the first one that all traces contain.
func (m *match) alignByNumber(members []int) []int {
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

// firstCommonNumber returns the number at which the latest partial trace begins, or 0 if all traces
// are complete.
func (m *match) firstCommonNumber(members []int) int64 {
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
// skips nothing if all traces are complete, or if a member has no events.
func (m *match) alignByContent(
	ranks []*history.Rank, members []int,
) (skipped []int, notes []string) {
	skipped = make([]int, len(members))
	keys := make([][]requestKey, len(members)) // of the requests, by member
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
			k.text = texts.findOrAdd(callText(rank, e))
		}

		keys = append(keys, k)
	}

	return keys
}

// patternLength is the number of requests for which findBeginning searches. Shorter patterns often
// occur several times.
const patternLength = 32

// findBeginning returns the index in long of the first requests of short, or 0 if there is none.
// If they occur several times, isUnique is false, and index is the occurrence that best aligns the
// ends of long and short.
func findBeginning(long, short []requestKey) (index int, isUnique bool) {
	pattern := short[:min(patternLength, len(short))]
	endAligned := len(long) - len(short)
	distance := func(i int) int { return max(i-endAligned, endAligned-i) }
	occurrences := 0
	for i := range len(long) - len(pattern) + 1 {
		if !slices.Equal(long[i:i+len(pattern)], pattern) {
			continue
		}

		occurrences++
		if occurrences == 1 || distance(i) < distance(index) {
			index = i
		}
	}

	return index, occurrences <= 1
}
