package export

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// Clock describes how a rank's clock differs from the clock of the lowest rank.
//
// The difference is measured with calls in which ranks compare or combine values (Agree, Any,
// Step). These calls return at almost the same time on all ranks, and each trace records that time.
// The measured offset is the median of the differences between the times on two ranks. The spread
// is the 90th percentile of the deviations from the median.
type Clock struct {
	Rank int `json:"rank"`
	// IsReference is set if the other clocks are compared with this clock.
	IsReference bool `json:"reference"`
	// CallCount is the number of calls used for the comparison, or 0 if the offset is unknown.
	CallCount int `json:"calls"`
	// MeasuredOffset is the measured offset in nanoseconds. It is positive if the rank's clock is
	// ahead.
	MeasuredOffset int64 `json:"measured_ns"`
	// Spread is the uncertainty of MeasuredOffset, in nanoseconds.
	Spread int64 `json:"spread_ns"`
	// AppliedOffset is subtracted from exported times, in nanoseconds. It is 0 if MeasuredOffset is
	// too small to show that the clocks differ.
	AppliedOffset int64 `json:"offset_ns"`
}

const (
	// minCalls is the smallest number of calls that make a measurement reliable.
	minCalls = 3
	// minOffset is the smallest offset that is corrected, in nanoseconds.
	minOffset = int64(100 * time.Microsecond)
)

// String describes the clock.
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

// callKey identifies a call across ranks.
type callKey struct {
	group, name string
	callNumber  uint64
}

// clockSamples holds the times at which a rank returned from calls, in nanoseconds UTC.
type clockSamples map[callKey]int64

// maxSamples limits the number of samples per group and name.
const maxSamples = 4096

// sampleClock collects the times of calls in a trace. It numbers the calls of each group and name.
// If there are too many calls, sampleClock keeps those whose numbers are multiples of a power of
// two. All ranks therefore keep the same calls.
func sampleClock(l *trace.Log) clockSamples {
	s := clockSamples{}
	type series struct{ count, stride uint64 }
	all := map[[2]string]*series{}
	for i := range l.Records {
		r := &l.Records[i]
		if !isValueCall(r.Kind) {
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
		if l.Missing > 0 {
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

// keepMultiples removes the samples of a group and name whose number is not a multiple of stride.
func (s clockSamples) keepMultiples(id [2]string, stride uint64) {
	for k := range s {
		if k.group == id[0] && k.name == id[1] && k.callNumber%stride != 0 {
			delete(s, k)
		}
	}
}

// isValueCall reports whether k is the kind of a call in which all ranks of a group compare or
// combine a value.
func isValueCall(k event.Kind) bool {
	return k >= event.KindInteger && k <= event.KindStep
}

// measureClocks measures the clocks of the ranks. A rank that made no call together with the first
// rank is compared with another rank whose offset is known.
func measureClocks(ranks []rankTrace, all []clockSamples) []Clock {
	clocks := make([]Clock, len(ranks))
	isKnown := make([]bool, len(ranks))
	for i := range clocks {
		clocks[i].Rank = ranks[i].rank
	}
	clocks[0].IsReference, isKnown[0] = true, true
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

// compareSamples returns the offset of the second clock from the first, the spread of the offset,
// and the number of calls that both ranks made.
func compareSamples(first, second clockSamples) (offset, spread int64, callCount int) {
	var differences []int64
	for key, time := range second {
		if reference, ok := first[key]; ok {
			differences = append(differences, time-reference)
		}
	}
	if len(differences) == 0 {
		return 0, 0, 0
	}
	slices.Sort(differences)
	offset = differences[len(differences)/2]
	slices.SortFunc(differences, func(a, b int64) int {
		return cmp.Compare(max(a-offset, offset-a), max(b-offset, offset-b))
	})
	last := differences[len(differences)*9/10]
	return offset, max(last-offset, offset-last), len(differences)
}
