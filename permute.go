package symmem

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
)

// PermutedLayout describes the memory that Permute writes. (Permute sorts the rows that Dispatch
// has received by expert.) See [driver.PermutedLayout].
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
	// Computed has the shape [PermutedLayout.Capacity, Hidden] and the type BFloat16.
	Computed Memory
	// Returned has the shape of Combine's Send: [ranks, MaxTokens, Hidden].
	Returned Memory
}

// permute queues a Permute or, if isUnpermute is true, an Unpermute. operation names the call in
// errors. parts lists the memory that the call uses, in the order of driver.Permutation.Spans. If
// the call uses less than three parts, the rest is zero.
func permute(
	g *Group, operation string, a *PermuteArgs, isUnpermute bool, parts [3]Memory, s *Stream,
) error {
	if s == nil {
		s = g.rt.stream
	}

	if s.rt != g.rt {
		return invalid("%s on group %s: the stream belongs to another runtime", operation, g.id)
	}

	if err := queuePermutation(g, a, isUnpermute, parts, s); err != nil {
		return fmt.Errorf("%s on group %s: %w", operation, g.id, err)
	}

	return nil
}

// queuePermutation is permute without the checks of the stream.
func queuePermutation(
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

	for i, span := range p.Spans(isUnpermute) {
		if err := g.calls.checkMemory(span.Name, parts[i], span.Bytes, Uint8); err != nil {
			return err
		}
	}

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
	defer s.useAgain(first, second)
	defer s.useAgain(third, third)
	queue := permuter.Permute
	if isUnpermute {
		queue = permuter.Unpermute
	}

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
