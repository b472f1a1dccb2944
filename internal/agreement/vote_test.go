package agreement

import (
	"slices"
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
