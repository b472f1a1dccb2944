package export

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// Clock describes how the clock of a rank differs from the reference, which is the clock of the
// rank with the lowest number. The offset is measured with calls in which ranks compare or combine
// values (Agree, Any, Step), because these calls return at almost the same time on all ranks.
type Clock struct {
	Rank        int  `json:"rank"`
	IsReference bool `json:"reference"`
	// CallCount is the number of calls used for the comparison, or 0 if the offset is unknown.
	CallCount int `json:"calls"`
	// MeasuredOffset is the median of the differences, in nanoseconds. It is positive if the rank's
	// clock is ahead.
	MeasuredOffset int64 `json:"measured_ns"`
	// Spread is the 90th percentile of the deviations from MeasuredOffset, in nanoseconds.
	Spread int64 `json:"spread_ns"`
	// AppliedOffset is subtracted from exported times, in nanoseconds. It is MeasuredOffset, or 0 if
	// the measurement does not show that the clocks differ.
	AppliedOffset int64 `json:"offset_ns"`
}

const (
	minCalls  = 3                             // number of calls for a reliable measurement
	minOffset = int64(100 * time.Microsecond) // in nanoseconds; smaller offsets are not applied
)

// String describes the clock in one line.
func (c Clock) String() string {
	switch {
	case c.IsReference:
		return fmt.Sprintf("clock of rank %d: the reference", c.Rank)
	case c.CallCount == 0:
		return fmt.Sprintf("clock of rank %d: not measured, because the trace has no call that compares "+
			"values (such as Agree)", c.Rank)
	case c.AppliedOffset == 0:
		return fmt.Sprintf("clock of rank %d: no difference found (%v in %d calls, spread %v)", c.Rank,
			time.Duration(c.MeasuredOffset), c.CallCount, time.Duration(c.Spread))
	}
	return fmt.Sprintf("clock of rank %d: corrected by %v (%d calls, spread %v)", c.Rank,
		-time.Duration(c.AppliedOffset), c.CallCount, time.Duration(c.Spread))
}

// callKey identifies a call. The same call has the same key on all ranks.
type callKey struct {
	group, name string // ID of the group, and name of the value
	callNumber  uint64
}

// clockSamples holds the times at which a rank returned from calls, in nanoseconds since 1970.
type clockSamples map[callKey]int64

// maxSamples limits the number of samples per group and name.
const maxSamples = 4096

// sampleClock returns the times of calls in a trace. If a group and name have more than maxSamples
// calls, it keeps the calls whose numbers are multiples of a power of two, so that all ranks keep
// the same calls.
func sampleClock(l *trace.Log) clockSamples {
	s := clockSamples{}
	type series struct {
		count  uint64 // number of calls so far
		stride uint64 // the numbers of the samples are multiples of stride
	}
	all := map[[2]string]*series{} // by group and name
	for i := range l.Records {
		r := &l.Records[i]
		if !isValueKind(r.Kind) {
			continue
		}
		id := [2]string{r.Group, r.Name}
		calls := all[id]
		if calls == nil {
			calls = &series{stride: 1}
			all[id] = calls
		}
		number := calls.count
		calls.count++
		if l.Missing > 0 { // the count lacks the calls that newer records have replaced
			number = r.Number
		}
		if number%calls.stride != 0 {
			continue
		}
		s[callKey{r.Group, r.Name, number}] = r.Time.UnixNano()
		if calls.count/calls.stride > maxSamples {
			calls.stride *= 2
			s.keepMultiples(id, calls.stride)
		}
	}
	return s
}

// keepMultiples removes the samples of a group and name whose numbers are not multiples of stride.
func (s clockSamples) keepMultiples(id [2]string, stride uint64) {
	for k := range s {
		if k.group == id[0] && k.name == id[1] && k.callNumber%stride != 0 {
			delete(s, k)
		}
	}
}

// isValueKind reports whether k is the kind of a call in which ranks compare or combine a value.
func isValueKind(k event.Kind) bool {
	return k >= event.KindInteger && k <= event.KindStep
}

// measureClocks returns the clocks of the ranks; all[i] holds the samples of ranks[i]. A rank that
// has no call in common with the first rank is compared with another rank whose offset is known.
func measureClocks(ranks []rankTrace, all []clockSamples) []Clock {
	clocks := make([]Clock, len(ranks))
	isKnown := make([]bool, len(ranks))
	for i := range clocks {
		clocks[i].Rank = ranks[i].rank
	}
	clocks[0].IsReference, isKnown[0] = true, true
	// The queue holds ranks with known offsets that have not yet been compared with other ranks.
	for queue := []int{0}; len(queue) > 0; queue = queue[1:] {
		reference := queue[0]
		for i := range clocks {
			if isKnown[i] {
				continue
			}
			offset, spread, callCount := compareSamples(all[reference], all[i])
			if callCount == 0 {
				continue
			}
			isKnown[i] = true
			queue = append(queue, i)
			clock := &clocks[i]
			clock.CallCount = callCount
			clock.MeasuredOffset = clocks[reference].MeasuredOffset + offset
			clock.Spread = clocks[reference].Spread + spread
			absolute := max(clock.MeasuredOffset, -clock.MeasuredOffset)
			if callCount >= minCalls && absolute > minOffset && absolute > 2*clock.Spread {
				clock.AppliedOffset = clock.MeasuredOffset
			}
		}
	}
	return clocks
}

// compareSamples returns the offset of the second clock from the first, the spread of the offset
// (see Clock), and the number of calls that both ranks made.
func compareSamples(first, second clockSamples) (offset, spread int64, callCount int) {
	var differences []int64
	for key, returned := range second {
		if reference, ok := first[key]; ok {
			differences = append(differences, returned-reference)
		}
	}
	if len(differences) == 0 {
		return 0, 0, 0
	}
	slices.Sort(differences)
	offset = differences[len(differences)/2]
	deviation := func(difference int64) int64 { return max(difference-offset, offset-difference) }
	slices.SortFunc(differences, func(a, b int64) int {
		return cmp.Compare(deviation(a), deviation(b))
	})
	percentile90 := differences[len(differences)*9/10]
	return offset, deviation(percentile90), len(differences)
}
