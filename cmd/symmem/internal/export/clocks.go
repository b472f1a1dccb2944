package export

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// The clocks of machines differ. To put the events of all ranks on one timeline, an export compares
// each clock with the reference, which is the clock of the rank with the lowest number:
//
//   - In calls such as Agree, Any and Step, ranks compare or combine a value. They return from such
//     a call at almost the same time. The time on a rank's clock is the rank's sample.
//   - Suppose that ranks 0 and 1 call Agree("batch size") three times. Rank 0 has the samples 1000,
//     2000 and 3000 us. Rank 1 has the samples 6010, 7000 and 7995 us.
//   - So the differences are 5010, 5000 and 4995 us. Their median is the offset of rank 1's clock:
//     it is ahead by 5000 us.
//   - The spread shows how precise the offset is. 90% of the differences deviate from the offset by
//     at most the spread, which is 10 us here.
//   - The offset is applied: it is subtracted from all times of rank 1. Small or unreliable offsets
//     are not applied.

// Clock describes how the clock of a rank differs from the reference.
type Clock struct {
	Rank        int  `json:"rank"`
	IsReference bool `json:"reference"`
	// CallCount is the number of calls that were compared, or 0 if the offset is unknown.
	CallCount int `json:"calls"`
	// MeasuredOffset is in nanoseconds. It is positive if the rank's clock is ahead.
	MeasuredOffset int64 `json:"measured_ns"`
	// Spread is in nanoseconds.
	Spread int64 `json:"spread_ns"`
	// AppliedOffset is MeasuredOffset, or 0 if the offset is not applied. It is in nanoseconds.
	AppliedOffset int64 `json:"offset_ns"`
}

const (
	minCalls  = 3                             // fewer calls make an offset unreliable
	minOffset = int64(100 * time.Microsecond) // in nanoseconds; smaller offsets are not applied
)

// isDifferent reports whether the measurement shows that the clock differs from the reference.
func (c *Clock) isDifferent() bool {
	if c.CallCount < minCalls {
		return false
	}

	difference := max(c.MeasuredOffset, -c.MeasuredOffset) // the absolute value
	return difference > minOffset && difference > 2*c.Spread
}

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

// callKey identifies a call. With the same numbering, a call has the same key on all ranks.
type callKey struct {
	value  valueKey
	number uint64 // of the call
}

// clockSamples holds the samples of a rank by call, in nanoseconds since 1970.
type clockSamples map[callKey]int64

// series counts the calls for one value. If the series is long, samples are kept for about one of
// stride calls. stride is 1, 2, 4 and so on.
type series struct {
	count  uint64 // number of calls so far
	stride uint64
}

// isKept reports whether the sample of a call is kept. It depends on a hash of the call's number,
// because the numbers themselves can all be odd.
func isKept(number, stride uint64) bool {
	const factor = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	hash := bits.Reverse64(number * factor)
	return hash%stride == 0
}

// maxSamples limits the samples of one value.
const maxSamples = 4096

// A numbering determines the numbers of calls. Samples of ranks can only be compared if they have
// the same numbering.
type numbering int

const (
	// byCount numbers the calls for each value from 0. It needs traces that have lost no calls.
	byCount numbering = iota
	// byEvent uses the number of the event in its group.
	byEvent
)

// sampleClock returns the samples in a trace. In a long series, the numbers of calls determine
// which samples are kept. So ranks whose series differ in length have calls in common.
func sampleClock(l *trace.Log, by numbering) clockSamples {
	samples := clockSamples{}
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
		if by == byEvent {
			number = r.Number
		}

		if !isKept(number, calls.stride) {
			continue
		}

		samples[callKey{value: value, number: number}] = r.Time.UnixNano()
		if calls.count/calls.stride > maxSamples {
			calls.stride *= 2
			samples.thin(value, calls.stride)
		}
	}

	return samples
}

// isValueKind reports whether k is the kind of a call in which ranks compare or combine a value.
func isValueKind(k event.Kind) bool {
	return k >= event.KindInteger && k <= event.KindStep
}

// thin removes the samples of a value that isKept excludes.
func (s clockSamples) thin(value valueKey, stride uint64) {
	for call := range s {
		if call.value == value && !isKept(call.number, stride) {
			delete(s, call)
		}
	}
}

// measureClocks returns the clocks of the ranks. samples[i] holds the samples of ranks[i].
//
// It compares the first rank, the reference, with all others. A rank without a call in common with
// the first rank is compared with another rank whose offset is known. For example, rank 2 may have
// calls in common with rank 1 only. Its offset is the sum of rank 1's offset and the difference.
func measureClocks(ranks []rankTrace, samples []clockSamples) []Clock {
	clocks := make([]Clock, len(ranks))
	for i := range clocks {
		clocks[i].Rank = ranks[i].rank
	}

	clocks[0].IsReference = true
	isKnown := make([]bool, len(ranks)) // whether the offset of ranks[i] is known
	isKnown[0] = true
	known := []int{0} // the indexes of these ranks; the loop appends to it
	for n := 0; n < len(known); n++ {
		base := known[n]
		for i := range clocks {
			if isKnown[i] {
				continue
			}

			offset, spread, callCount := compareSamples(samples[base], samples[i])
			if callCount == 0 {
				continue
			}

			isKnown[i] = true
			known = append(known, i)
			clock := &clocks[i]
			clock.CallCount = callCount
			clock.MeasuredOffset = clocks[base].MeasuredOffset + offset
			clock.Spread = clocks[base].Spread + spread
			if clock.isDifferent() {
				clock.AppliedOffset = clock.MeasuredOffset
			}
		}
	}

	return clocks
}

// compareSamples returns the offset of the second clock from the first one, and its spread.
// callCount is the number of calls in common.
func compareSamples(first, second clockSamples) (offset, spread int64, callCount int) {
	var differences []int64
	for call, secondTime := range second {
		if firstTime, isCommon := first[call]; isCommon {
			differences = append(differences, secondTime-firstTime)
		}
	}

	callCount = len(differences)
	if callCount == 0 {
		return 0, 0, 0
	}

	slices.Sort(differences)
	offset = differences[callCount/2] // the median
	deviations := make([]int64, callCount)
	for i, difference := range differences {
		deviations[i] = max(difference-offset, offset-difference) // the absolute value
	}

	slices.Sort(deviations)
	spread = deviations[callCount*9/10] // the 90th percentile
	return offset, spread, callCount
}
