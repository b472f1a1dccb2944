package binding

import (
	"cmp"

	"symmem"
	"symmem/driver"
)

// PermuteArguments holds the arguments of symmem_permute and symmem_unpermute as C passes them.
type PermuteArguments struct {
	Experts, TopK                            int
	MaxTokens, Hidden, Scales                int64
	Type                                     int
	Align                                    int64
	Dispatched, Permuted, Computed, Returned uintptr
}

// toPermutation returns a valid permutation for the memory of a rank.
func (a *PermuteArguments) toPermutation(
	ranks, rank int, returns bool,
) (*driver.Permutation, error) {
	t, err := parseEnum("element type", types, a.Type)
	if err != nil {
		return nil, err
	}
	p := &driver.Permutation{
		Route: driver.Route{
			MaxTokens: a.MaxTokens, Hidden: a.Hidden, Scales: a.Scales, TopK: a.TopK, Experts: a.Experts,
		},
		DataType: t, Ranks: ranks, Rank: rank, Align: cmp.Or(a.Align, symmem.DefaultPermuteAlign),
		Dispatched: a.Dispatched, Permuted: a.Permuted, Computed: a.Computed, Returned: a.Returned,
	}
	return p, p.Validate(returns)
}

// Layout returns the layout of the memory that symmem_permute writes.
func (a *PermuteArguments) Layout(ranks int) (layout symmem.PermutedLayout, err error) {
	if err := checkRanks(ranks); err != nil {
		return layout, err
	}
	shape := *a
	shape.Dispatched, shape.Permuted = 0, 0
	p, err := shape.toPermutation(ranks, 0, false)
	if err != nil {
		return layout, err
	}
	return p.Layout(), nil
}
