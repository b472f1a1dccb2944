package binding

import (
	"cmp"

	"symmem"
	"symmem/driver"
)

// PermuteArguments holds the arguments of symmem_permute and symmem_unpermute as C passes them. The
// fields up to Type describe the dispatch that has written the rows.
type PermuteArguments struct {
	Experts    int   // number of experts of all ranks
	TopK       int   // number of experts for each token
	MaxTokens  int64 // maximum number of tokens of a rank
	Hidden     int64 // elements of a row
	Scales     int64 // float32 scales of a row
	Type       int   // enumerator of the element type
	Align      int64 // the first row of each expert is a multiple; 0 for the default
	Dispatched uintptr
	Permuted   uintptr
	Computed   uintptr // used only by symmem_unpermute
	Returned   uintptr // used only by symmem_unpermute
}

// toPermutation converts the arguments to a permutation for the memory of a rank, and validates it.
// returns is set for symmem_unpermute.
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
	err = p.Validate(returns)
	return p, err
}

// Layout returns the layout of the memory that symmem_permute writes.
func (a *PermuteArguments) Layout(ranks int) (layout symmem.PermutedLayout, err error) {
	if err := checkRanks(ranks); err != nil {
		return layout, err
	}

	shape := *a
	shape.Dispatched = 0 // the layout does not depend on addresses
	shape.Permuted = 0
	const anyRank, returns = 0, false
	p, err := shape.toPermutation(ranks, anyRank, returns)
	if err != nil {
		return layout, err
	}

	return p.Layout(), nil
}
