package symmem

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
)

// PermutedLayout describes the memory that Permute writes. See [driver.PermutedLayout].
type PermutedLayout = driver.PermutedLayout

// DefaultPermuteAlign is the alignment if PermuteArgs.Align is 0.
const DefaultPermuteAlign = 128

// PermutedLayout returns the layout of PermuteArgs.Permuted for a group with the given number of
// ranks, with space for any choice of experts. align is PermuteArgs.Align.
func (r Routing) PermutedLayout(ranks int, align int64) PermutedLayout {
	route := driver.Route{
		MaxTokens: r.MaxTokens, TopK: r.TopK, Scales: r.Scales, Experts: r.Experts,
	}
	rowBytes := r.Hidden * int64(r.Type.Size())
	align = cmp.Or(align, DefaultPermuteAlign)
	return route.PermutedLayout(ranks, rowBytes, align)
}

// PermuteArgs contains the arguments of Permute and Unpermute. Suppose that this rank runs experts
// 4 and 5 of a model, and that Dispatch has received row A for expert 5, row B for expert 4 and row
// C for both. Permute writes B and C for expert 4, and then A and C for expert 5. The program
// computes a new row from each of these four. Unpermute multiplies the new rows by their weights,
// and writes three rows for Combine: those of A and B, and the sum of the two of C.
//
// The tensors may belong to any pool and must be aligned to 16 bytes.
type PermuteArgs struct {
	Routing
	// Align is the alignment of each expert's first row, in rows. It is at most 4096; 0 selects
	// DefaultPermuteAlign.
	Align int64
	// Dispatched is the output of Dispatch.
	Dispatched Memory
	// Permuted has the layout of Routing.PermutedLayout.
	Permuted Memory
	// Computed has the shape [PermutedLayout.Capacity, Hidden] and the type BFloat16.
	Computed Memory
	// Returned has the shape of Combine's Send: [ranks, MaxTokens, Hidden].
	Returned Memory
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

// permutation is an operation, named as in errors.
type permutation string

const (
	permuting   permutation = "permuting"
	unpermuting permutation = "unpermuting"
)

// permute queues a Permute or an Unpermute.
func permute(g *Group, operation permutation, a *PermuteArgs, s *Stream) error {
	if s == nil {
		s = g.rt.stream
	}

	if s.rt != g.rt {
		return invalid("%s on group %s: the stream belongs to another runtime", operation, g.id)
	}

	if err := checkAndQueuePermutation(g, operation, a, s); err != nil {
		return fmt.Errorf("%s on group %s: %w", operation, g.id, err)
	}

	return nil
}

func checkAndQueuePermutation(
	g *Group, operation permutation, a *PermuteArgs, s *Stream,
) error {
	permuter, canPermute := g.rt.device.(driver.Permuter)
	if !canPermute {
		return fmt.Errorf("the backend has no permutations: %w", ErrUnsupported)
	}

	submit := permuter.Permute
	tensors := [3]Memory{a.Dispatched, a.Permuted} // in the order of driver.Permutation.Spans
	isUnpermute := operation == unpermuting
	if isUnpermute {
		submit = permuter.Unpermute
		tensors = [3]Memory{a.Permuted, a.Computed, a.Returned}
	}

	p := a.driverPermutation(g)
	if err := p.Validate(isUnpermute); err != nil {
		return err
	}

	for i, span := range p.Spans(isUnpermute) {
		if err := g.calls.checkMemory(span.Name, tensors[i], span.Bytes, Uint8); err != nil {
			return err
		}
	}

	return queuePermutation(p, submit, tensors, s)
}

// queuePermutation enters the pools of the tensors while it queues the permutation. It records that
// the stream uses the tensors.
func queuePermutation(
	p *driver.Permutation, submit func(driver.Stream, *driver.Permutation) error, tensors [3]Memory,
	s *Stream,
) error {
	first, second, third := tensors[0], tensors[1], tensors[2]
	use, err := enterPools(first.pool, second.pool)
	if err != nil {
		return err
	}
	defer use.leave(first.pool, second.pool)
	thirdPool := third.pool
	hasEnteredThird := thirdPool == first.pool || thirdPool == second.pool
	if hasEnteredThird {
		thirdPool = nil // entering again would fail if Pool.Close has begun
	}

	thirdUse, err := enterPools(thirdPool, nil)
	if err != nil {
		return err
	}
	defer thirdUse.leave(thirdPool, nil)
	err = errors.Join(s.checkAndUse(first, second), s.checkAndUse(third, Memory{}))
	if err != nil {
		return err
	}

	defer s.useAgain(first, second)
	defer s.useAgain(third, Memory{})
	if err := submit(s.queue, p); err != nil {
		return err
	}

	var errs []error
	for _, tensor := range tensors {
		if tensor.isGoMemory() {
			errs = append(errs, s.keepReachable(tensor, Memory{}))
		}
	}

	return errors.Join(errs...)
}
