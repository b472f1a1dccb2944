package agreement

import (
	"slices"
	"testing"
)

// A rank that was stopped by another rank's fault reports no call, so it cannot differ in one.
func TestRanksWithoutACallDoNotCount(t *testing.T) {
	sum, greatest := &CollectiveCall{ReduceOp: "Sum"}, &CollectiveCall{ReduceOp: "Max"}
	for name, c := range map[string]struct {
		calls   []*CollectiveCall
		deviant []int
	}{
		"all report":           {[]*CollectiveCall{greatest, sum, greatest, greatest}, []int{1}},
		"one of the majority":  {[]*CollectiveCall{greatest, sum, nil, greatest}, []int{1}},
		"the lowest":           {[]*CollectiveCall{nil, sum, greatest, greatest}, []int{1}},
		"not among the others": {[]*CollectiveCall{greatest, greatest, greatest, sum, nil}, []int{3}},
		"most report none":     {[]*CollectiveCall{nil, nil, nil, greatest, sum}, nil},
		"equally many":         {[]*CollectiveCall{greatest, sum, nil}, nil},
		"one call":             {[]*CollectiveCall{greatest, nil, greatest}, []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			machines := make([]*Machine, len(c.calls))
			for i, call := range c.calls {
				machines[i] = machineOf(t, Config{Rank: i, Ranks: len(c.calls), Call: call})
			}
			outcomes, _ := drive(t, machines, nil)
			for rank, o := range outcomes {
				if d := o.Divergence; d == nil || !slices.Equal(d.Deviant, c.deviant) {
					t.Errorf("rank %d: %v, want deviant %v", rank, d, c.deviant)
				}
			}
		})
	}
}
