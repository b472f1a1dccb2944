package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"symmem"
)

// grown is a pool of one rank with a chosen number of segments, all of them registered with each of
// a number of groups. It takes PyTorch's sizing, whose segments for small blocks have 2 MiB: two
// blocks of 1 MiB fill one, so the number of segments is exact.
type grown struct {
	rt     *symmem.Runtime
	pool   *symmem.Pool
	groups []*symmem.Group
	blocks []symmem.Buffer
}

// ErrSegments means that a pool did not get the number of segments that a figure needs.
var ErrSegments = errors.New("the pool has another number of segments than wanted")

// halfSegment is a block of which two fill a segment.
const halfSegment = 1 << 20

// newGrown splits a rank's world into so many groups of all its ranks and makes an empty pool.
func newGrown(ctx context.Context, rt *symmem.Runtime, groups int) (*grown, error) {
	pool, err := rt.NewPool(symmem.PoolOptions{Domain: rt.World(), PyTorch: true})
	if err != nil {
		return nil, err
	}
	g := &grown{rt: rt, pool: pool, groups: []*symmem.Group{rt.World()}}
	for len(g.groups) < groups {
		group, err := rt.World().Split(ctx, 0, rt.Rank())
		if err != nil {
			return nil, err
		}
		g.groups = append(g.groups, group)
	}
	return g, nil
}

// allocate maps segments until the pool has so many.
func (g *grown) allocate(segments int) error {
	for len(g.blocks) < 2*segments {
		b, err := g.pool.Alloc(halfSegment)
		if err != nil {
			return err
		}
		g.blocks = append(g.blocks, b)
	}
	if have := g.pool.Stats().Segments; have != segments {
		return fmt.Errorf("%d instead of %d: %w", have, segments, ErrSegments)
	}
	return nil
}

// grow maps segments and registers them with every group.
func (g *grown) grow(ctx context.Context, segments int) error {
	if err := g.allocate(segments); err != nil {
		return fmt.Errorf("growing to %d segments: %w", segments, err)
	}
	for _, group := range g.groups {
		if err := g.pool.Register(ctx, group); err != nil {
			return fmt.Errorf("registering %d segments: %w", segments, err)
		}
	}
	return nil
}

// onLocalRanks runs a function on every rank of a world inside this process and returns the first
// error, after all ranks are closed.
func onLocalRanks(
	ctx context.Context, n int, o symmem.Options, f func(*symmem.Runtime) error,
) error {
	runtimes, err := symmem.OpenLocal(ctx, n, o)
	if err != nil {
		return err
	}
	errs := make([]error, 2*n)
	together(runtimes, func(i int, rt *symmem.Runtime) { errs[i] = f(rt) })
	together(runtimes, func(i int, rt *symmem.Runtime) { errs[n+i] = rt.Close() })
	if at := slices.IndexFunc(errs, func(err error) bool { return err != nil }); at >= 0 {
		return errs[at]
	}
	return nil
}

func together(runtimes []*symmem.Runtime, f func(int, *symmem.Runtime)) {
	var ranks sync.WaitGroup
	for i, rt := range runtimes {
		ranks.Go(func() { f(i, rt) })
	}
	ranks.Wait()
}
