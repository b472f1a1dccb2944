package agreement

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem/event"
)

// Another rank's fault may have stopped ranks without a call before they made it.
func TestRanksWithoutCallAreNotDeviant(t *testing.T) {
	sum, maxOp := &event.Call{ReduceOp: "Sum"}, &event.Call{ReduceOp: "Max"}
	for name, c := range map[string]struct {
		calls   []*event.Call
		deviant []int
	}{
		"all ranks report a call":          {[]*event.Call{maxOp, sum, maxOp, maxOp}, []int{1}},
		"one of the majority reports none": {[]*event.Call{maxOp, sum, nil, maxOp}, []int{1}},
		"the lowest reports none":          {[]*event.Call{nil, sum, maxOp, maxOp}, []int{1}},
		"the highest reports none":         {[]*event.Call{maxOp, maxOp, maxOp, sum, nil}, []int{3}},
		"most ranks report none":           {[]*event.Call{nil, nil, nil, maxOp, sum}, nil},
		"no call has a majority":           {[]*event.Call{maxOp, sum, nil}, nil},
		"all others report the same call":  {[]*event.Call{maxOp, nil, maxOp}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, len(c.calls))
			for i, call := range c.calls {
				machines[i] = mustNew(t, Config{Rank: i, Ranks: len(c.calls), Call: call})
			}
			outcomes, _ := runAll(t, machines, nil)
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
	outcomes, _ := runAll(t, machines, nil)
	if d := outcomes[0].Divergence; d == nil || d.Kind != KindCollective {
		t.Errorf("got %v, want a divergence of collectives", d)
	}
}

func TestDifferingCallIsReportedIfItsRankIsAbsent(t *testing.T) {
	call := &event.Call{ReduceOp: "Sum"}
	for name, c := range map[string]struct {
		differs bool
		absent  map[int]bool
		want    bool
	}{
		"a rank is absent":                         {true, map[int]bool{2: true}, true},
		"all ranks take part":                      {true, nil, false},
		"a rank is absent, but no call may differ": {false, map[int]bool{2: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, 3)
			for i := range machines {
				machines[i] = mustNew(t, Config{Rank: i, Ranks: 3, Call: call, CallDiffers: c.differs})
			}
			outcomes, _ := runAll(t, machines, c.absent)
			if d := outcomes[0].Divergence; (d != nil) != c.want {
				t.Errorf("got %v, want a divergence: %t", d, c.want)
			}
		})
	}
}
