package random

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// round is one round on one rank. What it draws from draws, and every decision that follows, is the
// same on all ranks.
type round struct {
	*world
	config *Config
	number int
	draws  *rand.Rand
	noise  *workload.Noise
	pools  []*symmem.Pool
	// groups begin with the world; nil where this rank is no member.
	groups []*symmem.Group
	live   []holding
	bytes  int64 // of live
	graphs []*recording
	tally  *Tally
}

// holding is a buffer that the program holds.
type holding struct {
	pool   *symmem.Pool // nil for memory of this rank's own
	buffer symmem.Buffer
	bytes  int64
}

// memory is the buffer without what rounding has added.
func (h holding) memory() (symmem.Memory, error) { return h.buffer.Memory().Slice(0, h.bytes) }

// Limits of what is live: blocks, and bytes in longest messages.
const (
	liveBlocks   = 64
	liveMessages = 16
	liveGroups   = 4
	liveGraphs   = 3
)

// The pools of a round.
var pools = []symmem.PoolOptions{
	{FirstSegment: workload.FirstSegment},
	{FirstSegment: 4 * workload.FirstSegment},
	{Sizing: symmem.SizeAsPyTorch},
}

func newRound(w *world, c *Config, number int, t *Tally) *round {
	return &round{
		world: w, config: c, number: number, tally: t,
		draws:  rand.New(rand.NewPCG(c.Seed, uint64(number))),
		groups: []*symmem.Group{w.rt.World()},
	}
}

// run draws and runs the steps of the round.
func (r *round) run(ctx context.Context) (err error) {
	if r.noise, err = workload.NewNoise(r.rt, &r.config.Config, r.number); err != nil {
		return err
	}
	for i := range pools {
		if err := r.addPool(ctx, i); err != nil {
			return fmt.Errorf("making pool %d: %w", i, err)
		}
	}
	// The path of the world is what the round before has left.
	if err := r.rt.World().SetPath(ctx, one(r, choices)); err != nil {
		return err
	}
	for n := range r.config.Steps {
		step := drawStep(r.draws)
		if err := errors.Join(r.noise.Step(), step.run(r, ctx)); err != nil {
			return fmt.Errorf("step %d, %s: %w", n+1, step.name, err)
		}
		r.tally.Steps++
	}
	if err := r.finish(ctx); err != nil {
		return fmt.Errorf("after the last step: %w", err)
	}
	return nil
}

// addPool makes pool i, again if it was closed.
func (r *round) addPool(ctx context.Context, i int) error {
	o := pools[i]
	o.Domain, o.Placement = r.rt.World(), r.config.Placement
	p, err := r.rt.NewPool(o)
	if err != nil {
		return err
	}
	if i < len(r.pools) {
		r.pools[i] = p
	} else {
		r.pools = append(r.pools, p)
	}
	if r.config.Placement != symmem.PlaceByAddress {
		return nil
	}
	// More than the round needs.
	return workload.Spread(ctx, p, r.rt.World(), r.config.MaxBytes*liveMessages/8)
}

// one draws an element.
func one[T any](r *round, from []T) T { return from[r.draws.IntN(len(from))] }

// chance is true once in n times.
func (r *round) chance(n int) bool { return r.draws.IntN(n) == 0 }

// size draws a length in bytes, so that its logarithm is even.
func (r *round) size() int64 {
	least, longest := math.Log(minMessage), math.Log(float64(r.config.MaxBytes))
	return int64(math.Exp(least + r.draws.Float64()*(longest-least)))
}

// allocate makes one buffer, unless enough are live.
func (r *round) allocate(context.Context) error {
	if r.full() {
		return r.free()
	}
	p := one(r, r.pools)
	return r.keep(p)(p.AllocOn(one(r, r.streams), r.size()))
}

func (r *round) full() bool {
	return len(r.live) >= liveBlocks || r.bytes >= liveMessages*r.config.MaxBytes
}

// keep notes a buffer that was just allocated.
func (r *round) keep(p *symmem.Pool) func(symmem.Buffer, error) error {
	return func(b symmem.Buffer, err error) error {
		if err != nil {
			return err
		}
		r.live = append(r.live, holding{p, b, b.Size()})
		r.bytes += b.Size()
		return nil
	}
}

// free gives back a live buffer, if there is one.
func (r *round) free() error {
	if len(r.live) == 0 {
		return nil
	}
	return r.drop(r.draws.IntN(len(r.live)))
}

func (r *round) drop(i int) error {
	h := r.live[i]
	r.live = slices.Delete(r.live, i, i+1)
	r.bytes -= h.bytes
	return h.buffer.Free()
}

// scope allocates in a scope of a group and registers what is new, or abandons it.
func (r *round) scope(ctx context.Context) error {
	p, g, n, abandoned := one(r, r.pools), one(r, r.groups), 1+r.draws.IntN(4), r.chance(8)
	if g == nil {
		return r.several(n, p, func(bytes int64) (symmem.Buffer, error) { return p.Alloc(bytes) })
	}
	s := p.Begin(g)
	defer s.Abandon()
	if err := r.several(n, p, s.Alloc); err != nil || abandoned {
		return err
	}
	return s.End(ctx)
}

// several allocates n buffers.
func (r *round) several(
	n int, p *symmem.Pool, alloc func(int64) (symmem.Buffer, error),
) error {
	for range n {
		if r.full() {
			return nil
		}
		if err := r.keep(p)(alloc(r.size())); err != nil {
			return err
		}
	}
	return nil
}

// disabled allocates in a scope that is switched off.
func (r *round) disabled(context.Context) error {
	s := r.pools[0].BeginDisabled()
	defer s.Abandon()
	return r.several(1, nil, s.Alloc)
}

// finish replays every graph once more, and gives everything back.
func (r *round) finish(ctx context.Context) error {
	for _, g := range r.graphs {
		if err := r.replayOf(ctx, g, 1); err != nil {
			return err
		}
	}
	if err := r.closeGraphs(ctx, nil); err != nil {
		return err
	}
	for len(r.live) > 0 {
		if err := r.drop(len(r.live) - 1); err != nil {
			return err
		}
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	if r.rt.Check() != symmem.CheckOff {
		if err := r.rt.World().Check(ctx); err != nil {
			return err
		}
	}
	return r.end(ctx)
}

// ErrInUse means that memory is still in use although all buffers were freed.
var ErrInUse = errors.New("memory is in use that nobody holds")

// end closes groups and pools.
func (r *round) end(ctx context.Context) error {
	for len(r.groups) > 1 {
		if err := r.closeGroup(ctx, len(r.groups)-1); err != nil {
			return err
		}
	}
	r.tally.Peak = max(r.tally.Peak, r.mapped())
	for i, p := range r.pools {
		// After a fault pools keep what only some ranks had held until they are trimmed.
		if r.tally.Aborts > 0 && !r.showsTheBug() {
			if err := p.Trim(ctx, math.MaxInt64); err != nil {
				return err
			}
		}
		if s := p.Stats(); s.Used != 0 {
			return fmt.Errorf("pool %d: %d bytes, deferred %d, pinned %d: %w", i, s.Used, s.Deferred,
				s.Pinned, ErrInUse)
		}
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	errs := []error{r.noise.Close()}
	for _, p := range r.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// reserve maps memory ahead, registered with the world or not.
func (r *round) reserve(ctx context.Context) error {
	p, bytes := one(r, r.pools), r.size()
	if r.chance(2) {
		return p.Reserve(ctx, bytes, nil)
	}
	return p.Reserve(ctx, bytes, r.rt.World())
}

// showsTheBug reports whether a run places by address, to show wrong sums or how they are caught.
// It has no faults, since ranks compare their buffers after one at every level.
func (r *round) showsTheBug() bool { return r.config.Placement == symmem.PlaceByAddress }

// trim gives idle segments back. No graph may be over them. It compares at every level, so that a
// run which is to show wrong sums leaves it out.
func (r *round) trim(ctx context.Context) error {
	p, keep := one(r, r.pools), r.draws.Int64N(2)*r.size()
	if r.showsTheBug() && r.rt.Check() == symmem.CheckOff {
		return nil
	}
	if err := r.closeGraphs(ctx, nil); err != nil {
		return err
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	return p.Trim(ctx, keep)
}

// renew closes a pool with all that is in it, and makes another one.
func (r *round) renew(ctx context.Context) error {
	at := r.draws.IntN(len(r.pools))
	if err := r.closeGraphs(ctx, nil); err != nil {
		return err
	}
	for i := len(r.live) - 1; i >= 0; i-- {
		if r.live[i].pool == r.pools[at] {
			if err := r.drop(i); err != nil {
				return err
			}
		}
	}
	r.tally.Peak = max(r.tally.Peak, r.mapped())
	// Nobody closes while a peer may still read.
	if err := r.meet(ctx); err != nil {
		return err
	}
	if err := r.pools[at].Close(); err != nil {
		return err
	}
	return r.addPool(ctx, at)
}
