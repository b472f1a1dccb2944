package random

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

type round struct {
	env     *environment
	config  *Config
	number  int
	choices *choices
	noise   *workload.Noise
	buffers *buffers
	groups  *groups
	calls   *calls
	graphs  *graphs
	faults  *faults
	tally   *Tally
}

var poolOptions = []symmem.PoolOptions{
	{FirstSegment: workload.FirstSegment},
	{FirstSegment: 4 * workload.FirstSegment},
	{Sizing: symmem.SizeAsPyTorch},
}

func newRound(env *environment, c *Config, number int, t *Tally) *round {
	d := newChoices(c, number)
	r := &round{
		env: env, config: c, number: number, choices: d, tally: t,
		buffers: &buffers{choices: d, streams: env.streams}, groups: newGroups(env, d, t),
	}
	r.calls = &calls{
		env: env, choices: d, buffers: r.buffers, groups: r.groups, tally: t, round: number,
	}
	r.graphs = &graphs{
		env: env, choices: d, buffers: r.buffers, groups: r.groups, calls: r.calls, tally: t,
		onlySameGroup: c.SharedGPUs,
	}
	r.faults = &faults{
		env: env, choices: d, buffers: r.buffers, calls: r.calls, graphs: r.graphs, tally: t,
		timeout: c.Timeout,
	}
	return r
}

func (r *round) run(ctx context.Context) (err error) {
	if r.noise, err = workload.NewNoise(r.env.rt, &r.config.Config, r.number); err != nil {
		return err
	}
	for i := range poolOptions {
		p, err := r.newPool(ctx, i)
		if err != nil {
			return fmt.Errorf("creating pool %d: %w", i, err)
		}
		r.buffers.pools = append(r.buffers.pools, p)
	}
	// The world still has the path setting of an earlier round.
	if err := r.groups.worldGroup.SetPath(ctx, r.groups.drawPath()); err != nil {
		return err
	}
	for n := range r.config.Steps {
		step := drawStep(r.choices)
		if err := errors.Join(r.noise.Step(), step.run(r, ctx)); err != nil {
			return step.errorAt(n+1, err)
		}
		r.tally.Steps++
	}
	if err := r.finish(ctx); err != nil {
		return fmt.Errorf("after the last step: %w", err)
	}
	return nil
}

func (r *round) newPool(ctx context.Context, i int) (*symmem.Pool, error) {
	o := poolOptions[i]
	o.Domain, o.Placement = r.groups.worldGroup, r.config.Placement
	p, err := r.env.rt.NewPool(o)
	if err != nil || r.config.Placement != symmem.PlaceByAddress {
		return p, err
	}
	// Map more memory than the round needs.
	return p, workload.MapSegments(ctx, p, r.groups.worldGroup, r.config.MaxBytes*maxLiveMessages/8)
}

// allocateInScope allocates buffers in a scope, and then ends or abandons the scope. Ranks outside
// the group have no scope.
func (r *round) allocateInScope(ctx context.Context) error {
	p, g := choose(r.choices, r.buffers.pools), choose(r.choices, r.groups.all)
	n, abandoned := 1+r.choices.IntN(4), r.choices.isOneIn(8)
	if g == nil {
		return r.buffers.allocateSeveral(n, p, func(bytes int64) (symmem.Buffer, error) {
			return p.Alloc(bytes)
		})
	}
	s := p.Begin(g)
	defer s.Abandon()
	if err := r.buffers.allocateSeveral(n, p, s.Alloc); err != nil || abandoned {
		return err
	}
	return s.End(ctx)
}

func (r *round) allocateDisabled(context.Context) error {
	s := r.buffers.pools[0].BeginDisabled()
	defer s.Abandon()
	return r.buffers.allocateSeveral(1, nil, s.Alloc)
}

func (r *round) split(ctx context.Context) error {
	if len(r.groups.all) >= maxGroups {
		return r.closeAnyGroup(ctx)
	}
	return r.groups.split(ctx)
}

func (r *round) closeAnyGroup(ctx context.Context) error {
	if len(r.groups.all) == 1 {
		return nil
	}
	return r.closeGroup(ctx, 1+r.choices.IntN(len(r.groups.all)-1))
}

func (r *round) closeGroup(ctx context.Context, index int) error {
	if err := r.graphs.closeForGroup(ctx, index); err != nil {
		return err
	}
	if err := r.env.barrier(ctx); err != nil {
		return err
	}
	g := r.groups.all[index]
	r.groups.all = slices.Delete(r.groups.all, index, index+1)
	r.graphs.removeGroupIndex(index)
	if g == nil {
		return nil
	}
	return g.Close()
}

func (r *round) compareHistories(ctx context.Context) error {
	if r.env.rt.Check() == symmem.CheckOff {
		return nil
	}
	return r.groups.worldGroup.Check(ctx)
}

func (r *round) finish(ctx context.Context) error {
	if err := r.graphs.replayAll(ctx); err != nil {
		return err
	}
	if err := r.graphs.close(ctx, nil); err != nil {
		return err
	}
	if err := r.buffers.freeMatching(func(liveBuffer) bool { return true }); err != nil {
		return err
	}
	if err := r.env.barrier(ctx); err != nil {
		return err
	}
	if err := r.compareHistories(ctx); err != nil {
		return err
	}
	return r.closeAll(ctx)
}

// ErrInUse is returned if a pool still uses memory at the end of a round.
var ErrInUse = errors.New("memory is in use although all buffers have been freed")

func (r *round) closeAll(ctx context.Context) error {
	for len(r.groups.all) > 1 {
		if err := r.closeGroup(ctx, len(r.groups.all)-1); err != nil {
			return err
		}
	}
	r.tally.PeakBytes = max(r.tally.PeakBytes, r.env.mapped())
	for i, p := range r.buffers.pools {
		// After a fault, pools keep buffers that were live on only some ranks until Trim.
		if r.tally.Aborts > 0 && !r.isPlacedByAddress() {
			if err := p.Trim(ctx, math.MaxInt64); err != nil {
				return err
			}
		}
		if s := p.Stats(); s.Used != 0 {
			return fmt.Errorf("pool %d: %d bytes used, %d deferred, %d pinned: %w", i, s.Used, s.Deferred,
				s.Pinned, ErrInUse)
		}
	}
	if err := r.env.barrier(ctx); err != nil {
		return err
	}
	errs := []error{r.noise.Close()}
	for _, p := range r.buffers.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

func (r *round) reserve(ctx context.Context) error {
	p, bytes := choose(r.choices, r.buffers.pools), r.choices.drawSize()
	if r.choices.isOneIn(2) {
		return p.Reserve(ctx, bytes, nil)
	}
	return p.Reserve(ctx, bytes, r.groups.worldGroup)
}

// isPlacedByAddress reports whether blocks are placed by address. To show the wrong sums, the run
// then skips steps that always compare ranks.
func (r *round) isPlacedByAddress() bool { return r.config.Placement == symmem.PlaceByAddress }

func (r *round) trim(ctx context.Context) error {
	p, keep := choose(r.choices, r.buffers.pools), r.choices.Int64N(2)*r.choices.drawSize()
	if r.isPlacedByAddress() && r.env.rt.Check() == symmem.CheckOff {
		return nil
	}
	if err := r.graphs.close(ctx, nil); err != nil {
		return err
	}
	if err := r.env.barrier(ctx); err != nil {
		return err
	}
	return p.Trim(ctx, keep)
}

func (r *round) replacePool(ctx context.Context) error {
	index := r.choices.IntN(len(r.buffers.pools))
	old := r.buffers.pools[index]
	if err := r.graphs.close(ctx, nil); err != nil {
		return err
	}
	if err := r.buffers.freeMatching(func(b liveBuffer) bool { return b.pool == old }); err != nil {
		return err
	}
	r.tally.PeakBytes = max(r.tally.PeakBytes, r.env.mapped())
	// Wait for other ranks, which may still read the memory.
	if err := r.env.barrier(ctx); err != nil {
		return err
	}
	if err := old.Close(); err != nil {
		return err
	}
	p, err := r.newPool(ctx, index)
	if err == nil {
		r.buffers.pools[index] = p
	}
	return err
}

func (r *round) abort(ctx context.Context) error {
	if r.isPlacedByAddress() {
		return nil
	}
	return r.faults.abort(ctx)
}

func (r *round) failInReplay(ctx context.Context) error {
	if r.isPlacedByAddress() {
		return nil
	}
	return r.faults.failInReplay(ctx)
}
