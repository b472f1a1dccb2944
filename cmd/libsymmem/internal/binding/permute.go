package binding

import (
	"cmp"
	"errors"

	"symmem"
	"symmem/driver"
)

// PermuteArguments holds the arguments of symmem_permute and symmem_unpermute as C passes them.
// symmem_permute sorts the output rows of a dispatch by expert. symmem_unpermute restores the order
// for the experts' results.
type PermuteArguments struct {
	// Arguments of the dispatch: see RouteArguments.
	Experts   int
	TopK      int
	MaxTokens int64
	Hidden    int64
	Scales    int64
	Type      int

	Align int64 // alignment of each expert's first row, in rows; 0 for the default

	// Addresses of buffers.
	Dispatched uintptr // input of symmem_permute
	Permuted   uintptr // output of symmem_permute and input of symmem_unpermute
	Computed   uintptr // input of symmem_unpermute: the experts' results
	Returned   uintptr // output of symmem_unpermute
}

// toPermutation converts the arguments to a permutation on one rank, and validates it.
func (a *PermuteArguments) toPermutation(
	ranks, rank int, isUnpermute bool,
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
	err = p.Validate(isUnpermute)
	return p, err
}

// Layout returns the layout of the memory that symmem_permute writes.
func (a *PermuteArguments) Layout(ranks int) (layout symmem.PermutedLayout, err error) {
	if err := checkLayoutRanks(ranks); err != nil {
		return layout, err
	}

	const someRank, isUnpermute = 0, false
	shape := *a
	shape.Dispatched, shape.Permuted = 0, 0 // Layout must not reject invalid addresses
	p, err := shape.toPermutation(ranks, someRank, isUnpermute)
	if err != nil {
		return layout, err
	}

	return p.Layout(), nil
}

// Permute queues a symmem_permute or, if isUnpermute is set, a symmem_unpermute. handle is the
// group's handle.
func (cs *calls) Permute(
	handle uint64, a *PermuteArguments, isUnpermute bool, stream uintptr,
) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	p, err := a.toPermutation(g.Size(), g.Rank(), isUnpermute)
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
	var buffers [3]symmem.Memory
	var allErrs error
	for i, span := range p.Spans(isUnpermute) {
		m, err := r.findMemory(span.Address, span.Bytes)
		buffers[i] = m
		allErrs = errors.Join(allErrs, err)
	}

	if allErrs != nil {
		return allErrs
	}

	if isUnpermute {
		args.Permuted, args.Computed, args.Returned = buffers[0], buffers[1], buffers[2]
		return g.Unpermute(args, s)
	}

	args.Dispatched, args.Permuted = buffers[0], buffers[1]
	return g.Permute(args, s)
}
