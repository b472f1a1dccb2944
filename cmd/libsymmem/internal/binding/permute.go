package binding

import (
	"cmp"
	"errors"

	"symmem"
	"symmem/driver"
)

// PermuteArguments holds the arguments of symmem_permute and symmem_unpermute as C passes them.
// symmem_permute sorts the rows that a dispatch has written by expert. symmem_unpermute restores
// the order for the experts' results. The fields up to Type are those of the dispatch.
type PermuteArguments struct {
	Experts    int
	TopK       int
	MaxTokens  int64
	Hidden     int64
	Scales     int64
	Type       int
	Align      int64 // each expert's first row has a multiple of this index; 0 for the default
	Dispatched uintptr
	Permuted   uintptr
	Computed   uintptr // used only by symmem_unpermute
	Returned   uintptr // used only by symmem_unpermute
}

// toPermutation converts the arguments to a permutation on one rank, and validates it. reverses is
// set for symmem_unpermute.
func (a *PermuteArguments) toPermutation(
	ranks, rank int, reverses bool,
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
	err = p.Validate(reverses)
	return p, err
}

// Layout returns the layout of the memory that symmem_permute writes.
func (a *PermuteArguments) Layout(ranks int) (layout symmem.PermutedLayout, err error) {
	if err := checkLayoutRanks(ranks); err != nil {
		return layout, err
	}

	shape := *a
	shape.Dispatched = 0 // the layout does not depend on addresses
	shape.Permuted = 0
	const someRank, reverses = 0, false
	p, err := shape.toPermutation(ranks, someRank, reverses)
	if err != nil {
		return layout, err
	}

	return p.Layout(), nil
}

// Permute queues a symmem_unpermute if reverses is set, and a symmem_permute otherwise. handle is
// the group's handle.
func (cs *calls) Permute(handle uint64, a *PermuteArguments, reverses bool, stream uintptr) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	p, err := a.toPermutation(g.Size(), g.Rank(), reverses)
	if err != nil {
		return err
	}

	s, err := r.findStream(stream)
	if err != nil {
		return err
	}

	args := symmem.PermuteArgs{
		Routing: symmem.Routing{
			Experts: a.Experts, TopK: a.TopK, MaxTokens: a.MaxTokens, Hidden: a.Hidden,
			Type: p.DataType, Scales: a.Scales,
		},
		Align: p.Align,
	}
	buffers := []*symmem.Memory{&args.Dispatched, &args.Permuted}
	if reverses {
		buffers = []*symmem.Memory{&args.Permuted, &args.Computed, &args.Returned}
	}

	var allErrs error
	for i, span := range p.Spans(reverses) { // in the order of buffers
		m, err := r.findMemory(span.Address, span.Bytes)
		*buffers[i] = m
		allErrs = errors.Join(allErrs, err)
	}

	if allErrs != nil {
		return allErrs
	}

	if reverses {
		return g.Unpermute(args, s)
	}

	return g.Permute(args, s)
}
