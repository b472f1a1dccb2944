package agreement

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem/event"
)

// An agreement also compares the calls of a collective, such as an all-reduce. If rank 1 calls it
// with ReduceOp "Sum", and ranks 0, 2 and 3 with "Max", the outcome is a divergence. Rank 1 is
// deviant: its call differs from that of the majority.

// A rank may report no call, for example because it was stopped by a fault of another rank before
// the call. Such a rank must not be deviant if calls of other ranks differ from each other.
func TestRanksWithoutCallAreNotDeviant(t *testing.T) {
	sum := &event.Call{ReduceOp: "Sum"}
	maxOp := &event.Call{ReduceOp: "Max"}
	for name, c := range map[string]struct {
		calls   []*event.Call // by rank; nil if the rank reports none
		deviant []int         // wanted deviant ranks
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
		// The missing call is the only difference, so its rank is deviant.
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
				d := o.Divergence
				if d == nil || !slices.Equal(d.Deviant, c.deviant) {
					t.Errorf("rank %d: got %v, want deviant ranks %v", rank, d, c.deviant)
				}
			}
		})
	}
}

// TestLargestCallsAreCompared lets two ranks report different calls, whose texts have the maximum
// size. The outcome must be a divergence. A call that lists several collectives has long texts.
func TestLargestCallsAreCompared(t *testing.T) {
	machines := make([]*Machine, 2)
	for i := range machines {
		const tooLong = 1 << 12 // in bytes; event.AppendCall cuts each text to the maximum size
		text := strings.Repeat(strconv.Itoa(i), tooLong)
		call := &event.Call{
			Operation: text, Path: text, DataType: text, ReduceOp: text, Counts: text, List: text,
		}
		machines[i] = mustNew(t, Config{Rank: i, Ranks: len(machines), Call: call})
	}

	outcomes, _ := runAll(t, machines, noAbsentRanks)
	if d := outcomes[0].Divergence; d == nil || d.Kind != KindCollective {
		t.Errorf("got %v, want a divergence of collectives", d)
	}
}

// All ranks that take part report the same call. CallDiffers means that they know that the call of
// another rank differs. If a rank is absent, this can only be its call, so the outcome must be a
// divergence.
func TestDifferingCallIsReportedIfItsRankIsAbsent(t *testing.T) {
	call := &event.Call{ReduceOp: "Sum"}
	for name, c := range map[string]struct {
		callDiffers    bool         // Config.CallDiffers
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
