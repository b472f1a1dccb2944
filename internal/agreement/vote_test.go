package agreement

import (
	"slices"
	"testing"
)

// TestRanksWithoutACallDoNotCount checks that ranks without a call are neither counted nor deviant
// while other ranks report different calls. Another rank's fault can stop a rank before its call.
func TestRanksWithoutACallDoNotCount(t *testing.T) {
	sum, maxOp := &CollectiveCall{ReduceOp: "Sum"}, &CollectiveCall{ReduceOp: "Max"}
	for name, c := range map[string]struct {
		calls   []*CollectiveCall
		deviant []int
	}{
		"all ranks report a call":          {[]*CollectiveCall{maxOp, sum, maxOp, maxOp}, []int{1}},
		"one of the majority reports none": {[]*CollectiveCall{maxOp, sum, nil, maxOp}, []int{1}},
		"the lowest reports none":          {[]*CollectiveCall{nil, sum, maxOp, maxOp}, []int{1}},
		"the highest reports none":         {[]*CollectiveCall{maxOp, maxOp, maxOp, sum, nil}, []int{3}},
		"most ranks report none":           {[]*CollectiveCall{nil, nil, nil, maxOp, sum}, nil},
		"no call has a majority":           {[]*CollectiveCall{maxOp, sum, nil}, nil},
		"all others report the same call":  {[]*CollectiveCall{maxOp, nil, maxOp}, []int{1}},
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
