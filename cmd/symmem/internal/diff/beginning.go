package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// countSkipped returns how many requests to skip on each member (compared rank), so that all begin
// with the same request. A trace may lack its oldest requests. members holds indexes in ranks. The
// notes state which counts are uncertain.
func (m *match) countSkipped(
	ranks []*history.Rank, members []int,
) (skipCounts []int, notes []string) {
	if m.hasCommonNumbers() {
		return m.alignByNumber(members), nil
	}

	return m.alignByContent(ranks, members)
}

// hasCommonNumbers reports whether each request has the same number on all ranks.
func (m *match) hasCommonNumbers() bool {
	switch m.class {
	case history.SymmemPool:
		return true
	case history.Calls:
		// Messages have numbers too, and ranks differ in their numbers of messages.
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
		return e.Size // the number of the call in its group
	}

	return e.Number
}

// alignByNumber skips the requests before the first one that all traces contain.
func (m *match) alignByNumber(members []int) []int {
	firstNumber := m.firstCommonNumber(members)
	skipCounts := make([]int, len(members))
	for i, rankIndex := range members {
		s := m.sequences[rankIndex]
		if s == nil {
			continue
		}

		for j := range s.Events {
			e := &s.Events[j]
			if e.Action.IsRequest() && m.numberOf(e) < firstNumber {
				skipCounts[i]++
			}
		}
	}

	return skipCounts
}

// firstCommonNumber returns the highest number of a partial trace's first event, or 0 if all traces
// are complete.
func (m *match) firstCommonNumber(members []int) int64 {
	first := int64(0)
	for _, rankIndex := range members {
		s := m.sequences[rankIndex]
		hasEvents := s != nil && len(s.Events) > 0
		if hasEvents && s.IsPartial {
			first = max(first, m.numberOf(&s.Events[0]))
		}
	}

	return first
}

// alignByContent searches for the first requests of the shortest trace in the other traces. It
// skips nothing if all traces are complete, or if a member has no events.
func (m *match) alignByContent(
	ranks []*history.Rank, members []int,
) (skipCounts []int, notes []string) {
	skipCounts = make([]int, len(members))
	hasNoEvents := func(rankIndex int) bool { return m.sequences[rankIndex] == nil }
	if slices.ContainsFunc(members, hasNoEvents) || !slices.ContainsFunc(members, m.isPartial) {
		return skipCounts, nil
	}

	keys := make([][]requestKey, len(members)) // keys[i] lists the requests of members[i]
	texts := textNumbers{}
	for i, rankIndex := range members {
		keys[i] = searchKeys(ranks[rankIndex], m.sequences[rankIndex], texts)
	}

	shortest := indexOfShortest(keys)
	for i := range keys {
		if i == shortest {
			continue
		}

		index, isAmbiguous := findBeginning(keys[i], keys[shortest])
		skipCounts[i] = index
		if isAmbiguous {
			notes = append(notes, fmt.Sprintf("the beginning is lost, and the requests of rank %d repeat: "+
				"its trace was assumed to end at the same request as that of rank %d",
				ranks[members[i]].Number, ranks[members[shortest]].Number))
		}
	}

	return skipCounts, notes
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

// findBeginning returns the index in long at which the first requests of short occur, or 0 if they
// do not occur. isAmbiguous is set if they occur several times. The index is then the one that best
// aligns the ends of long and short. long must be at least as long as short.
func findBeginning(long, short []requestKey) (index int, isAmbiguous bool) {
	pattern := short[:min(patternLength, len(short))]
	endAlignedIndex := len(long) - len(short)
	distance := func(i int) int { return max(i-endAlignedIndex, endAlignedIndex-i) }
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

	return index, occurrences > 1
}
