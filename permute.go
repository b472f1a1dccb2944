package symmem

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
)

// In a mixture of experts, Dispatch sends rows of numbers to the ranks of the experts that process
// them. Suppose that this rank owns the experts 4 and 5, and has received three rows: the first for
// expert 5, the second for expert 4, and the third for both. Permute copies them, so that the rows
// of each expert are adjacent: rows 2 and 3 for expert 4, then rows 1 and 3 for expert 5. The
// program computes a new row from each copy. Unpermute multiplies the new rows by weights, adds up
// the two of row 3, and restores the order of the received rows. Combine sends the sums back.

// PermutedLayout describes the memory that Permute writes. See [driver.PermutedLayout].
type PermutedLayout = driver.PermutedLayout

// DefaultPermuteAlign is the alignment if PermuteArgs.Align is 0.
const DefaultPermuteAlign = 128

// PermutedLayout returns the layout of the memory that Permute writes in a group with the given
// number of ranks. The memory has the layout's Bytes, which suffice for any ids. align is
// PermuteArgs.Align.
func (r Routing) PermutedLayout(ranks int, align int64) PermutedLayout {
	route := driver.Route{
		MaxTokens: r.MaxTokens, TopK: r.TopK, Scales: r.Scales, Experts: r.Experts,
	}
	rowBytes := r.Hidden * int64(r.Type.Size())
	align = cmp.Or(align, DefaultPermuteAlign)
	return route.PermutedLayout(ranks, rowBytes, align)
}

// PermuteArgs contains the arguments of Permute and Unpermute. Memory must be aligned to 16 bytes.
// It may belong to any pool.
type PermuteArgs struct {
	Routing
	// Align is the alignment of the experts' rows: the index of the first row of each expert is a
	// multiple of Align. It is at most 4096, and 0 selects DefaultPermuteAlign.
	Align int64
	// Dispatched is the memory that Dispatch has written.
	Dispatched Memory
	// Permuted has the layout of Routing.PermutedLayout.
	Permuted Memory
	// Computed holds the computed rows. It has the shape [PermutedLayout.Capacity, Hidden] and the
	// type BFloat16.
	Computed Memory
	// Returned has the shape of Combine's Send: [ranks, MaxTokens, Hidden].
	Returned Memory
}

// driverPermutation converts the arguments for the backend.
func (a *PermuteArgs) driverPermutation(g *Group) *driver.Permutation {
	return &driver.Permutation{
		Route: driver.Route{
			MaxTokens: a.MaxTokens, Hidden: a.Hidden, Scales: a.Scales, TopK: a.TopK, Experts: a.Experts,
		},
		DataType: a.Type, Rank: g.rank, Ranks: len(g.ranks),
		Align:      cmp.Or(a.Align, DefaultPermuteAlign),
		Dispatched: a.Dispatched.Address(), Permuted: a.Permuted.Address(),
		Computed: a.Computed.Address(), Returned: a.Returned.Address(),
	}
}

// permute queues a Permute or, if isUnpermute is true, an Unpermute. operation names the call in
// errors. parts holds the memory that the call uses: Dispatched and Permuted for Permute, and
// Permuted, Computed and Returned for Unpermute.
func permute(
	g *Group, operation string, a *PermuteArgs, isUnpermute bool, parts [3]Memory, s *Stream,
) error {
	if s == nil {
		s = g.rt.stream
	}

	if s.rt != g.rt {
		return invalid("%s on group %s: the stream belongs to another runtime", operation, g.id)
	}

	if err := checkAndQueuePermutation(g, a, isUnpermute, parts, s); err != nil {
		return fmt.Errorf("%s on group %s: %w", operation, g.id, err)
	}

	return nil
}

// checkAndQueuePermutation checks the arguments and the memory, and queues the permutation.
func checkAndQueuePermutation(
	g *Group, a *PermuteArgs, isUnpermute bool, parts [3]Memory, s *Stream,
) error {
	permuter, ok := g.rt.device.(driver.Permuter)
	if !ok {
		return fmt.Errorf("the backend has no permutations: %w", ErrUnsupported)
	}

	p := a.driverPermutation(g)
	if err := p.Validate(isUnpermute); err != nil {
		return err
	}

	for i, span := range p.Spans(isUnpermute) { // in the order of parts
		if err := g.calls.checkMemory(span.Name, parts[i], span.Bytes, Uint8); err != nil {
			return err
		}
	}

	queue := permuter.Permute
	if isUnpermute {
		queue = permuter.Unpermute
	}

	return queuePermutation(p, queue, parts, s)
}

// queuePermutation queues the permutation on the stream. Until it returns, it keeps the pools of
// the parts open. It also records that the stream uses the parts, so that their memory is not
// reused too early.
func queuePermutation(
	p *driver.Permutation, queue func(driver.Stream, *driver.Permutation) error, parts [3]Memory,
	s *Stream,
) error {
	first, second, third := parts[0], parts[1], parts[2]
	use, err := enterPools(first.pool, second.pool)
	if err != nil {
		return err
	}
	defer use.leave(first.pool, second.pool)
	thirdPool := third.pool
	if thirdPool == first.pool || thirdPool == second.pool {
		thirdPool = nil // entered already; a second entry would fail if Close has begun
	}

	thirdUse, err := enterPools(thirdPool, nil)
	if err != nil {
		return err
	}
	defer thirdUse.leave(thirdPool, nil)
	err = errors.Join(s.checkAndUse(first, second), s.checkAndUse(third, third))
	if err != nil {
		return err
	}
	defer s.useAgain(first, second) // after the permutation has been queued
	defer s.useAgain(third, third)
	if err := queue(s.queue, p); err != nil {
		return err
	}

	var errs []error
	for _, part := range parts {
		if part.isGoMemory() {
			errs = append(errs, s.keepReachable(part, part))
		}
	}

	return errors.Join(errs...)
}
