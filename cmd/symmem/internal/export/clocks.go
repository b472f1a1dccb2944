package export

import (
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
	// MeasuredOffset is the median difference from the reference, in nanoseconds. It is positive if
	// the rank's clock is ahead.
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

// valueKey identifies a value that the ranks of a group compare or combine again and again.
type valueKey struct {
	group string // ID of the group
	name  string // name of the value
}

// callKey identifies a call. The same call has the same key on all ranks.
type callKey struct {
	value      valueKey
	callNumber uint64
}

// clockSamples holds the times at which a rank returned from calls, in nanoseconds since 1970.
type clockSamples map[callKey]int64

// maxSamples limits the number of samples per value.
const maxSamples = 4096

// sampleClock returns the times of calls in a trace. If a value has more than maxSamples calls, it
// keeps only the calls whose numbers are multiples of a power of two, so that all ranks keep the
// same calls.
func sampleClock(l *trace.Log) clockSamples {
	samples := clockSamples{}
	type series struct {
		count  uint64 // number of calls so far
		stride uint64 // the numbers of the samples are multiples of stride
	}
	seriesByValue := map[valueKey]*series{}
	for i := range l.Records {
		r := &l.Records[i]
		if !isValueKind(r.Kind) {
			continue
		}

		value := valueKey{group: r.Group, name: r.Name}
		calls := seriesByValue[value]
		if calls == nil {
			calls = &series{stride: 1}
			seriesByValue[value] = calls
		}

		number := calls.count
		calls.count++
		if l.Missing > 0 { // the count lacks the calls that newer records have replaced
			number = r.Number
		}

		if number%calls.stride != 0 {
			continue
		}

		samples[callKey{value: value, callNumber: number}] = r.Time.UnixNano()
		if calls.count/calls.stride > maxSamples {
			calls.stride *= 2
			samples.keepMultiples(value, calls.stride)
		}
	}

	return samples
}

// keepMultiples removes the samples of a value whose call numbers are not multiples of stride.
func (s clockSamples) keepMultiples(value valueKey, stride uint64) {
	for k := range s {
		if k.value == value && k.callNumber%stride != 0 {
			delete(s, k)
		}
	}
}

// isValueKind reports whether k is the kind of a call in which ranks compare or combine a value.
func isValueKind(k event.Kind) bool {
	return k >= event.KindInteger && k <= event.KindStep
}

// measureClocks returns the clocks of the ranks. samples[i] holds the samples of ranks[i]. A rank
// that has no call in common with the first rank is compared with another rank whose offset is
// known.
func measureClocks(ranks []rankTrace, samples []clockSamples) []Clock {
	clocks := make([]Clock, len(ranks))
	for i := range clocks {
		clocks[i].Rank = ranks[i].rank
	}

	clocks[0].IsReference = true
	isKnown := make([]bool, len(ranks)) // whether the offset of a rank is known
	isKnown[0] = true
	known := []int{0} // ranks whose offsets are known; the loop adds more
	for n := 0; n < len(known); n++ {
		reference := known[n]
		for i := range clocks {
			if isKnown[i] {
				continue
			}

			offset, spread, callCount := compareSamples(samples[reference], samples[i])
			if callCount == 0 {
				continue
			}

			isKnown[i] = true
			known = append(known, i)
			clock := &clocks[i]
			clock.CallCount = callCount
			clock.MeasuredOffset = clocks[reference].MeasuredOffset + offset
			clock.Spread = clocks[reference].Spread + spread
			if clock.isDifferent() {
				clock.AppliedOffset = clock.MeasuredOffset
			}
		}
	}

	return clocks
}

// isDifferent reports whether the measurement shows that the clock differs from the reference.
func (c *Clock) isDifferent() bool {
	if c.CallCount < minCalls {
		return false
	}

	difference := max(c.MeasuredOffset, -c.MeasuredOffset)
	return difference > minOffset && difference > 2*c.Spread
}

// compareSamples returns the offset of the second clock from the first, the spread of the offset
// (the 90th percentile of the deviations from it), and the number of calls that both ranks made.
func compareSamples(first, second clockSamples) (offset, spread int64, callCount int) {
	var differences []int64
	for call, secondTime := range second {
		if firstTime, ok := first[call]; ok {
			differences = append(differences, secondTime-firstTime)
		}
	}

	if len(differences) == 0 {
		return 0, 0, 0
	}

	slices.Sort(differences)
	offset = differences[len(differences)/2] // the median
	deviations := make([]int64, len(differences))
	for i, difference := range differences {
		deviations[i] = max(difference-offset, offset-difference)
	}

	slices.Sort(deviations)
	spread = deviations[len(deviations)*9/10]
	return offset, spread, len(differences)
}
