package symmem

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
)

// PermutedLayout describes the memory that Permute writes; see [driver.PermutedLayout].
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
	return route.PermutedLayout(ranks, rowBytes, cmp.Or(align, DefaultPermuteAlign))
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

// permute queues a Permute or, if returns is true, an Unpermute. what describes the call in
// errors. m lists the memory that the call uses. If that is less than three parts, the rest of m
// is zero.
func permute(
	g *Group, what string, a *PermuteArgs, returns bool, m [3]Memory, s *Stream,
) error {
	if s == nil {
		s = g.rt.stream
	}
	if s.rt != g.rt {
		return invalid("%s on group %s: the stream belongs to another runtime", what, g.id)
	}
	if err := queuePermutation(g, a, returns, m, s); err != nil {
		return fmt.Errorf("%s on group %s: %w", what, g.id, err)
	}
	return nil
}

func queuePermutation(g *Group, a *PermuteArgs, returns bool, m [3]Memory, s *Stream) error {
	permuter, ok := g.rt.device.(driver.Permuter)
	if !ok {
		return fmt.Errorf("the backend has no permutations: %w", ErrUnsupported)
	}
	p := a.driverPermutation(g)
	if err := p.Validate(returns); err != nil {
		return err
	}
	for i, span := range p.Spans(returns) {
		if err := g.calls.checkMemory(span.Name, m[i], span.Bytes, Uint8); err != nil {
			return err
		}
	}
	use, err := enterPools(m[0].pool, m[1].pool)
	if err != nil {
		return err
	}
	defer use.leave(m[0].pool, m[1].pool)
	third := m[2].pool
	if third == m[0].pool || third == m[1].pool {
		third = nil // a second entry would fail if Close has begun
	}
	thirdUse, err := enterPools(third, nil)
	if err != nil {
		return err
	}
	defer thirdUse.leave(third, nil)
	err = errors.Join(s.checkAndUse(m[0], m[1]), s.checkAndUse(m[2], m[2]))
	if err != nil {
		return err
	}
	defer s.useAgain(m[0], m[1])
	defer s.useAgain(m[2], m[2])
	queue := permuter.Permute
	if returns {
		queue = permuter.Unpermute
	}
	if err := queue(s.queue, p); err != nil {
		return err
	}
	for _, part := range m {
		if part.isGoMemory() {
			err = errors.Join(err, s.keepReachable(part, part))
		}
	}
	return err
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
