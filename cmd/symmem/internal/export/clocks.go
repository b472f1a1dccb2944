package export

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// Clock compares the clock of a rank with the reference, the clock of the lowest rank. All ranks
// return from a call such as Agree or Step at almost the same time. The clock's offset is the
// median difference of their times.
type Clock struct {
	Rank           int   `json:"rank"`
	IsReference    bool  `json:"reference"`
	CallCount      int   `json:"calls"`       // compared calls, or 0 if no offset was measured
	MeasuredOffset int64 `json:"measured_ns"` // positive if the clock is ahead
	Spread         int64 `json:"spread_ns"`   // 90th percentile of the deviations from the offset
	AppliedOffset  int64 `json:"offset_ns"`   // MeasuredOffset, or 0 if it is small or unreliable
}

const (
	minCalls  = 3                             // fewer calls make an offset unreliable
	minOffset = int64(100 * time.Microsecond) // smaller offsets are not corrected
)

// needsCorrection reports whether the measured offset is large and reliable.
func (c *Clock) needsCorrection() bool {
	magnitude := max(c.MeasuredOffset, -c.MeasuredOffset)
	isReliable := c.CallCount >= minCalls && magnitude > 2*c.Spread
	return isReliable && magnitude > minOffset
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
		return fmt.Sprintf("clock of rank %d: not corrected (%v in %d calls, spread %v)", c.Rank,
			time.Duration(c.MeasuredOffset), c.CallCount, time.Duration(c.Spread))
	}

	return fmt.Sprintf("clock of rank %d: corrected by %v (%d calls, spread %v)", c.Rank,
		-time.Duration(c.AppliedOffset), c.CallCount, time.Duration(c.Spread))
}

// valueKey identifies a value that ranks compare or combine, such as "batch size" in Agree.
type valueKey struct {
	group string // ID of the group
	name  string
}

// callKey identifies a call on all ranks.
type callKey struct {
	value  valueKey
	number uint64
}

// numbering selects callKey.number. To compare ranks, use the same numbering.
type numbering int

const (
	// byCount numbers the calls for each value from 0. It requires traces without lost calls.
	byCount numbering = iota
	// byEvent uses Record.Number, the number of the event in its group.
	byEvent
)

// clockSamples holds the times of a rank's calls, in nanoseconds since 1970.
type clockSamples map[callKey]int64

// sampler counts the calls for one value, and samples about one call in stride.
type sampler struct {
	count  uint64
	stride uint64 // a power of two that grows with count
}

// isSampled selects about one number in stride, even if all numbers are odd. Larger strides select
// subsets, so that ranks with different strides have common samples.
func isSampled(number, stride uint64) bool {
	const factor = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	hash := bits.Reverse64(number * factor)
	return hash%stride == 0
}

const maxSamples = 4096 // approximate limit for one value

func sampleClock(log *trace.Log, by numbering) clockSamples {
	samples := clockSamples{}
	samplers := map[valueKey]*sampler{}
	for i := range log.Records {
		r := &log.Records[i]
		if !isValueKind(r.Kind) {
			continue
		}

		value := valueKey{group: r.Group, name: r.Name}
		s := samplers[value]
		if s == nil {
			s = &sampler{stride: 1}
			samplers[value] = s
		}

		number := r.Number
		if by == byCount {
			number = s.count
		}

		s.count++
		if !isSampled(number, s.stride) {
			continue
		}

		samples[callKey{value: value, number: number}] = r.Time.UnixNano()
		approximateSamples := s.count / s.stride
		if approximateSamples > maxSamples {
			s.stride *= 2
			samples.thin(value, s.stride)
		}
	}

	return samples
}

// isValueKind reports whether ranks compare or combine a value in calls of this kind.
func isValueKind(k event.Kind) bool {
	return k >= event.KindInteger && k <= event.KindStep
}

// thin removes the samples of a value that stride excludes.
func (s clockSamples) thin(value valueKey, stride uint64) {
	for call := range s {
		if call.value == value && !isSampled(call.number, stride) {
			delete(s, call)
		}
	}
}

// measureClocks compares the clocks with the reference, ranks[0], in a breadth-first search,
// because some ranks may have no calls in common with ranks[0].
func measureClocks(ranks []rankTrace, samples []clockSamples) []Clock {
	clocks := make([]Clock, len(ranks))
	for i := range clocks {
		clocks[i].Rank = ranks[i].rank
	}

	clocks[0].IsReference = true
	isMeasured := make([]bool, len(ranks))
	isMeasured[0] = true
	queue := []int{0} // indexes of measured clocks
	for len(queue) > 0 {
		baseIndex := queue[0]
		queue = queue[1:]
		for i := range clocks {
			if isMeasured[i] {
				continue
			}

			offset, spread, callCount := compareSamples(samples[baseIndex], samples[i])
			if callCount == 0 {
				continue
			}

			isMeasured[i] = true
			queue = append(queue, i)
			clocks[i].setOffset(&clocks[baseIndex], offset, spread, callCount)
		}
	}

	return clocks
}

// setOffset adds an offset and a spread relative to base to those of base.
func (c *Clock) setOffset(base *Clock, offset, spread int64, callCount int) {
	c.CallCount = callCount
	c.MeasuredOffset = base.MeasuredOffset + offset
	c.Spread = base.Spread + spread
	if c.needsCorrection() {
		c.AppliedOffset = c.MeasuredOffset
	}
}

// compareSamples returns the offset from a base clock, its spread, and the number of common calls.
func compareSamples(base, samples clockSamples) (offset, spread int64, callCount int) {
	var differences []int64
	for call, sample := range samples {
		if baseSample, isCommon := base[call]; isCommon {
			differences = append(differences, sample-baseSample)
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
