package agreement

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem/event"
)

// Each rank reports the collective that it called, or none. A rank without a call must not be
// blamed: it may be on its way to the call, and was stopped because of another rank's fault.
func TestRanksWithoutCallAreNotDeviant(t *testing.T) {
	sum, maxOp := &event.Call{ReduceOp: "Sum"}, &event.Call{ReduceOp: "Max"}
	for name, c := range map[string]struct {
		calls   []*event.Call // by rank; nil if the rank reports none
		deviant []int         // ranks that differ from the majority
	}{
		"all ranks report a call": {
			calls: []*event.Call{maxOp, sum, maxOp, maxOp}, deviant: []int{1},
		},
		"one of the majority reports none": {
			calls: []*event.Call{maxOp, sum, nil, maxOp}, deviant: []int{1},
		},
		"the lowest reports none": {
			calls: []*event.Call{nil, sum, maxOp, maxOp}, deviant: []int{1},
		},
		"the highest reports none": {
			calls: []*event.Call{maxOp, maxOp, maxOp, sum, nil}, deviant: []int{3},
		},
		"most ranks report none": {
			calls: []*event.Call{nil, nil, nil, maxOp, sum}, deviant: nil,
		},
		"no call has a majority": {
			calls: []*event.Call{maxOp, sum, nil}, deviant: nil,
		},
		// Then the missing call is the only difference.
		"all others report the same call": {
			calls: []*event.Call{maxOp, nil, maxOp}, deviant: []int{1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, len(c.calls))
			for i, call := range c.calls {
				machines[i] = mustNew(t, Config{Rank: i, Ranks: len(c.calls), Call: call})
			}

			outcomes, _ := runAll(t, machines, noAbsentRanks)
			for rank, o := range outcomes {
				if d := o.Divergence; d == nil || !slices.Equal(d.Deviant, c.deviant) {
					t.Errorf("rank %d: got %v, want deviant ranks %v", rank, d, c.deviant)
				}
			}
		})
	}
}

// TestLargestCallsAreCompared lets two ranks report calls whose texts have the largest size. A list
// of several collectives has such a text.
func TestLargestCallsAreCompared(t *testing.T) {
	machines := make([]*Machine, 2)
	for i := range machines {
		const tooLong = 1 << 12 // event.AppendCall cuts each text
		name := strings.Repeat(strconv.Itoa(i), tooLong)
		machines[i] = mustNew(t, Config{Rank: i, Ranks: 2, Call: &event.Call{
			Operation: name, Path: name, DataType: name, ReduceOp: name, Counts: name, List: name,
		}})
	}

	outcomes, _ := runAll(t, machines, noAbsentRanks)
	if d := outcomes[0].Divergence; d == nil || d.Kind != KindCollective {
		t.Errorf("got %v, want a divergence of collectives", d)
	}
}

// All ranks that take part make the same call. If a rank is absent, and a call is known to differ,
// it must be that of the absent rank.
func TestDifferingCallIsReportedIfItsRankIsAbsent(t *testing.T) {
	call := &event.Call{ReduceOp: "Sum"}
	for name, c := range map[string]struct {
		callDiffers    bool         // see Config
		absent         map[int]bool // set of ranks
		wantDivergence bool
	}{
		"a rank is absent": {
			callDiffers: true, absent: map[int]bool{2: true}, wantDivergence: true,
		},
		"all ranks take part": {
			callDiffers: true, absent: noAbsentRanks, wantDivergence: false,
		},
		"a rank is absent, but no call is known to differ": {
			callDiffers: false, absent: map[int]bool{2: true}, wantDivergence: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, 3)
			for i := range machines {
				machines[i] = mustNew(t, Config{
					Rank: i, Ranks: 3, Call: call, CallDiffers: c.callDiffers,
				})
			}

			outcomes, _ := runAll(t, machines, c.absent)
			d := outcomes[0].Divergence
			if got := d != nil; got != c.wantDivergence {
				t.Errorf("got divergence %v, want one: %t", d, c.wantDivergence)
			}
		})
	}
}
