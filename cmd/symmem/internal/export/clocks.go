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
// The difference is measured with calls in which ranks compare or combine values on the host
// (Agree, Any, Step, ...). Such a call returns at almost the same time on all ranks, once the last
// rank has entered the call. Each trace records that time. The measured offset is the median of the
// differences between the times on two ranks. The spread is the 90th percentile of the deviations
// from the median.
type Clock struct {
	Rank int `json:"rank"`
	// Reference is set if the other clocks are compared with this clock.
	Reference bool `json:"reference"`
	// Calls is the number of calls used for the comparison, or 0 if the offset is unknown.
	Calls int `json:"calls"`
	// Measured is the measured offset in nanoseconds. It is positive if the rank's clock is ahead.
	Measured int64 `json:"measured_ns"`
	// Spread is the uncertainty of Measured, in nanoseconds.
	Spread int64 `json:"spread_ns"`
	// Offset is subtracted from exported times, in nanoseconds. It is 0 if Measured is too small to
	// show that the clocks differ.
	Offset int64 `json:"offset_ns"`
}

const (
	// minCalls is the smallest number of calls for which an offset is applied.
	minCalls = 3
	// minOffset is the smallest offset that is applied, in nanoseconds.
	minOffset = int64(100 * time.Microsecond)
)

// String describes the clock.
func (c Clock) String() string {
	switch {
	case c.Reference:
		return fmt.Sprintf("clock of rank %d: the reference", c.Rank)
	case c.Calls == 0:
		return fmt.Sprintf("clock of rank %d: not measured, because the trace has no call that compares "+
			"values (such as Agree)", c.Rank)
	case c.Offset == 0:
		return fmt.Sprintf("clock of rank %d: no difference found (%v in %d calls, spread %v)", c.Rank,
			time.Duration(c.Measured), c.Calls, time.Duration(c.Spread))
	}
	return fmt.Sprintf("clock of rank %d: corrected by %v (%d calls, spread %v)", c.Rank,
		-time.Duration(c.Offset), c.Calls, time.Duration(c.Spread))
}

// sampleKey identifies a call across ranks.
type sampleKey struct {
	group, name string
	number      uint64
}

// samples holds the times at which a rank returned from calls, in nanoseconds UTC.
type samples map[sampleKey]int64

// maxSamples limits the number of samples per group and name.
const maxSamples = 4096

// sampleClock samples the times of calls in a trace. It numbers the calls of each group and name.
// If there are too many calls, sampleClock keeps only the multiples of a power of two, so that all
// ranks sample the same calls.
func sampleClock(l *trace.Log) samples {
	s := samples{}
	type series struct{ count, stride uint64 }
	all := map[[2]string]*series{}
	for i := range l.Records {
		r := &l.Records[i]
		if !isValue(r.Kind) {
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
		s[sampleKey{r.Group, r.Name, number}] = r.Time.UnixNano()
		if calls.count/calls.stride > maxSamples {
			calls.stride *= 2
			s.keepMultiples(id, calls.stride)
		}
	}
	return s
}

// keepMultiples removes the samples of a group and name whose number is not a multiple of stride.
func (s samples) keepMultiples(id [2]string, stride uint64) {
	for k := range s {
		if k.group == id[0] && k.name == id[1] && k.number%stride != 0 {
			delete(s, k)
		}
	}
}

// isValue reports whether k is the kind of a call in which all ranks of a group compare or combine
// a value.
func isValue(k event.Kind) bool {
	return k >= event.KindInteger && k <= event.KindStep
}

// measureClocks measures the clocks of the ranks. If a rank has no call in common with the first
// rank, it is compared with another rank whose offset is known.
func measureClocks(ranks []rankTrace, all []samples) []Clock {
	clocks := make([]Clock, len(ranks))
	known := make([]bool, len(ranks))
	for i := range clocks {
		clocks[i].Rank = ranks[i].rank
	}
	clocks[0].Reference, known[0] = true, true
	for queue := []int{0}; len(queue) > 0; queue = queue[1:] {
		reference := queue[0]
		for i := range clocks {
			if known[i] {
				continue
			}
			offset, spread, calls := compare(all[reference], all[i])
			if calls == 0 {
				continue
			}
			known[i] = true
			queue = append(queue, i)
			c := &clocks[i]
			c.Calls = calls
			c.Measured = clocks[reference].Measured + offset
			c.Spread = clocks[reference].Spread + spread
			if size := max(c.Measured, -c.Measured); calls >= minCalls && size > minOffset &&
				size > 2*c.Spread {
				c.Offset = c.Measured
			}
		}
	}
	return clocks
}

// compare returns the offset of the second clock from the first, the spread of the offset, and the
// number of calls.
func compare(first, second samples) (offset, spread int64, calls int) {
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
