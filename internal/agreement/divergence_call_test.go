package agreement

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem/event"
)

// A rank whose call differs from the majority's is deviant. A rank without a call, such as one that
// a fault has stopped, is deviant only if all other ranks report the same call.
func TestRanksWithoutCallAreNotDeviant(t *testing.T) {
	sum := &event.Call{ReduceOp: "Sum"}
	maxOp := &event.Call{ReduceOp: "Max"}
	for name, c := range map[string]struct {
		calls       []*event.Call // by rank; nil for a rank without a call
		wantDeviant []int
	}{
		"all ranks report a call": {
			calls: []*event.Call{maxOp, sum, maxOp, maxOp}, wantDeviant: []int{1},
		},
		"one of the majority reports none": {
			calls: []*event.Call{maxOp, sum, nil, maxOp}, wantDeviant: []int{1},
		},
		"the lowest reports none": {
			calls: []*event.Call{nil, sum, maxOp, maxOp}, wantDeviant: []int{1},
		},
		"the highest reports none": {
			calls: []*event.Call{maxOp, maxOp, maxOp, sum, nil}, wantDeviant: []int{3},
		},
		"most ranks report none": {
			calls: []*event.Call{nil, nil, nil, maxOp, sum}, wantDeviant: nil,
		},
		"no call has a majority": {
			calls: []*event.Call{maxOp, sum, nil}, wantDeviant: nil,
		},
		"all others report the same call": {
			calls: []*event.Call{maxOp, nil, maxOp}, wantDeviant: []int{1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, len(c.calls))
			for rank, call := range c.calls {
				machines[rank] = mustNew(t, Config{Rank: rank, Ranks: len(c.calls), Call: call})
			}

			outcomes, _ := runAll(t, machines, noAbsentRanks)
			for rank, o := range outcomes {
				d := o.Divergence
				if d == nil || !slices.Equal(d.Deviant, c.wantDeviant) {
					t.Errorf("rank %d: got %v, want deviant ranks %v", rank, d, c.wantDeviant)
				}
			}
		})
	}
}

// A call whose texts all have the maximum size fits into a payload.
func TestLargestCallsAreCompared(t *testing.T) {
	machines := make([]*Machine, 2)
	for rank := range machines {
		const tooLong = 1 << 12 // event.AppendCall cuts each text to the maximum size
		text := strings.Repeat(strconv.Itoa(rank), tooLong)
		call := &event.Call{
			Operation: text, Path: text, DataType: text, ReduceOp: text, Counts: text, List: text,
		}
		machines[rank] = mustNew(t, Config{Rank: rank, Ranks: len(machines), Call: call})
	}

	outcomes, _ := runAll(t, machines, noAbsentRanks)
	if d := outcomes[0].Divergence; d == nil || d.Kind != KindCollective {
		t.Errorf("got %v, want a divergence of collectives", d)
	}
}

// If a call is known to differ, but all present ranks report the same call, then an absent rank has
// called something else.
func TestDifferingCallIsReportedIfItsRankIsAbsent(t *testing.T) {
	call := &event.Call{ReduceOp: "Sum"}
	rank2 := map[int]bool{2: true}
	for name, c := range map[string]struct {
		callDiffers    bool         // Config.CallDiffers
		absent         map[int]bool // set of ranks
		wantDivergence bool
	}{
		"a rank is absent": {
			callDiffers: true, absent: rank2, wantDivergence: true,
		},
		"all ranks take part": {
			callDiffers: true, absent: noAbsentRanks, wantDivergence: false,
		},
		"a rank is absent, but no call is known to differ": {
			callDiffers: false, absent: rank2, wantDivergence: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, 3)
			for rank := range machines {
				machines[rank] = mustNew(t, Config{
					Rank: rank, Ranks: len(machines), Call: call, CallDiffers: c.callDiffers,
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
