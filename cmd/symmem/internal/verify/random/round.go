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

// round is one random program: a sequence of random steps on new pools. All ranks draw the same
// steps.
type round struct {
	env     *environment
	config  *Config
	number  int
	choices *choices        // the same on all ranks
	noise   *workload.Noise // unrelated allocations, which differ between ranks; nil without skew
	buffers *buffers
	groups  *groups
	calls   *calls
	graphs  *graphs
	faults  *faults
	tally   *Tally // of all rounds of this rank
}

// poolOptions has an entry for each pool of a round.
var poolOptions = []symmem.PoolOptions{
	{FirstSegment: workload.FirstSegment},
	{FirstSegment: 4 * workload.FirstSegment},
	{Sizing: symmem.SizeAsPyTorch},
}

func newRound(env *environment, config *Config, number int, tally *Tally) *round {
	choices := newChoices(config, number)
	r := &round{env: env, config: config, number: number, choices: choices, tally: tally}
	r.buffers = &buffers{choices: choices, streams: env.streams}
	r.groups = newGroups(env, choices, tally)
	r.calls = &calls{
		env: env, choices: choices, buffers: r.buffers, groups: r.groups, tally: tally,
		round: number,
	}
	r.graphs = &graphs{
		env: env, choices: choices, buffers: r.buffers, groups: r.groups, calls: r.calls,
		tally: tally, onlySameGroup: config.SharedGPUs,
	}
	r.faults = &faults{
		env: env, choices: choices, buffers: r.buffers, calls: r.calls, graphs: r.graphs,
		tally: tally, timeout: config.Timeout,
	}
	return r
}

// run creates the pools, runs the steps and closes everything. After an error, it leaves pools and
// groups open.
func (r *round) run(ctx context.Context) error {
	noise, err := workload.NewNoise(r.env.rt, &r.config.Config, r.number)
	if err != nil {
		return err
	}

	r.noise = noise
	for i := range poolOptions {
		p, err := r.newPool(ctx, i)
		if err != nil {
			return fmt.Errorf("creating pool %d: %w", i, err)
		}

		r.buffers.pools = append(r.buffers.pools, p)
	}

	// The world (the group of all ranks) still has the path setting of an earlier round.
	if err := r.groups.worldGroup.SetPath(ctx, r.groups.drawPath()); err != nil {
		return err
	}

	for n := range r.config.Steps {
		step := drawStep(r.choices)
		noiseErr := r.noise.Step()
		// Even after noiseErr, because other ranks may wait for this rank in the step.
		stepErr := step.run(r, ctx)
		if err := errors.Join(noiseErr, stepErr); err != nil {
			return step.errorAt(n+1, err)
		}

		r.tally.Steps++
	}

	if err := r.finish(ctx); err != nil {
		return fmt.Errorf("after the last step: %w", err)
	}

	return nil
}

// newPool returns a new pool with poolOptions[i].
func (r *round) newPool(ctx context.Context, i int) (*symmem.Pool, error) {
	options := poolOptions[i]
	options.Domain = r.groups.worldGroup
	options.Placement = r.config.Placement
	p, err := r.env.rt.NewPool(options)
	if err != nil {
		return nil, err
	}

	if r.isPlacedByAddress() {
		// Map more memory than the round needs: 32 times part is 4 times the limit of live buffers.
		part := maxLiveBytes(r.config.MaxBytes) / 8
		if err := workload.MapSegments(ctx, p, r.groups.worldGroup, part); err != nil {
			return nil, err
		}
	}

	return p, nil
}

// allocateInScope allocates buffers in a scope of a random group. The end of the scope registers
// their memory with the group, unless the scope is abandoned. Ranks outside the group allocate the
// same buffers without a scope.
func (r *round) allocateInScope(ctx context.Context) error {
	p := choose(r.choices, r.buffers.pools)
	g := choose(r.choices, r.groups.all)
	n := 1 + r.choices.IntN(4)
	isAbandoned := r.choices.isOneIn(8)
	if g == nil {
		return r.buffers.allocateSeveral(n, p, p.Alloc)
	}

	scope := p.Begin(g)
	defer scope.Abandon() // does nothing after End
	err := r.buffers.allocateSeveral(n, p, scope.Alloc)
	if err != nil || isAbandoned {
		return err
	}

	return scope.End(ctx)
}

// allocateDisabled allocates a buffer in a disabled scope, whose memory is in no window: it is not
// registered with any group.
func (r *round) allocateDisabled(context.Context) error {
	scope := r.buffers.pools[0].BeginDisabled()
	defer scope.Abandon()
	return r.buffers.allocateSeveral(1, nil, scope.Alloc)
}

// split adds a group of some ranks. If there are maxGroups groups, it closes one instead.
func (r *round) split(ctx context.Context) error {
	if len(r.groups.all) >= maxGroups {
		return r.closeAnyGroup(ctx)
	}

	return r.groups.split(ctx)
}

// closeAnyGroup closes a random group other than the world, if there is one.
func (r *round) closeAnyGroup(ctx context.Context) error {
	if len(r.groups.all) == 1 {
		return nil
	}

	index := 1 + r.choices.IntN(len(r.groups.all)-1) // 0 is the world
	return r.closeGroup(ctx, index)
}

// closeGroup closes the graphs of the group at an index of r.groups.all, and then the group.
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
	if g == nil { // this rank is not a member
		return nil
	}

	return g.Close()
}

// compareHistories compares the requests to the pools across ranks.
func (r *round) compareHistories(ctx context.Context) error {
	if r.env.rt.Check() == symmem.CheckOff {
		return nil
	}

	return r.groups.worldGroup.Check(ctx)
}

// finish checks the graphs once more, frees all buffers and closes everything.
func (r *round) finish(ctx context.Context) error {
	if err := r.graphs.replayAll(ctx); err != nil {
		return err
	}

	if err := r.graphs.closeAll(ctx); err != nil {
		return err
	}

	matchesAll := func(liveBuffer) bool { return true }
	if err := r.buffers.freeMatching(matchesAll); err != nil {
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

// closeAll closes the groups except the world, checks that pools are unused, and closes them.
func (r *round) closeAll(ctx context.Context) error {
	for len(r.groups.all) > 1 {
		last := len(r.groups.all) - 1
		if err := r.closeGroup(ctx, last); err != nil {
			return err
		}
	}

	r.updatePeak()
	for i, p := range r.buffers.pools {
		if err := r.checkUnused(ctx, i, p); err != nil {
			return err
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

// checkUnused returns ErrInUse if pool p, which has poolOptions[i], uses memory.
func (r *round) checkUnused(ctx context.Context, i int, p *symmem.Pool) error {
	// After a fault, pools keep buffers that were live on only some ranks until Trim.
	if r.tally.Aborts > 0 && !r.isPlacedByAddress() {
		if err := p.Trim(ctx, math.MaxInt64); err != nil { // trims no cached memory
			return err
		}
	}

	s := p.Stats()
	if s.Used == 0 {
		return nil
	}

	return fmt.Errorf("pool %d: %d bytes used, %d deferred, %d pinned: %w", i, s.Used, s.Deferred,
		s.Pinned, ErrInUse)
}

// updatePeak updates tally.PeakBytes. It counts only open pools, so call it before closing them.
func (r *round) updatePeak() {
	r.tally.PeakBytes = max(r.tally.PeakBytes, r.env.mappedBytes())
}

// reserve maps memory in advance, with or without registering it with the world.
func (r *round) reserve(ctx context.Context) error {
	p := choose(r.choices, r.buffers.pools)
	bytes := r.choices.drawSize()
	g := r.groups.worldGroup
	if r.choices.isOneIn(2) {
		g = nil // do not register the memory
	}

	return p.Reserve(ctx, bytes, g)
}

// isPlacedByAddress reports whether blocks are placed by address, which differs between ranks. Such
// a run demonstrates the wrong sums that result. It skips steps in which symmem always compares
// ranks, because they would fail before a sum is wrong.
func (r *round) isPlacedByAddress() bool { return r.config.Placement == symmem.PlaceByAddress }

// trim releases cached memory of a pool: all of it, or all above a random size.
func (r *round) trim(ctx context.Context) error {
	p := choose(r.choices, r.buffers.pools)
	keptBytes := r.choices.Int64N(2) * r.choices.drawSize()
	if r.isPlacedByAddress() && r.env.rt.Check() == symmem.CheckOff {
		return nil
	}

	if err := r.graphs.closeAll(ctx); err != nil {
		return err
	}

	if err := r.env.barrier(ctx); err != nil {
		return err
	}

	return p.Trim(ctx, keptBytes)
}

// replacePool closes a pool, with its buffers and all graphs, and creates it again.
func (r *round) replacePool(ctx context.Context) error {
	index := r.choices.IntN(len(r.buffers.pools))
	old := r.buffers.pools[index]
	if err := r.graphs.closeAll(ctx); err != nil {
		return err
	}

	isInPool := func(b liveBuffer) bool { return b.pool == old }
	if err := r.buffers.freeMatching(isInPool); err != nil {
		return err
	}

	r.updatePeak()
	// Wait for other ranks, which may still read the memory.
	if err := r.env.barrier(ctx); err != nil {
		return err
	}

	if err := old.Close(); err != nil {
		return err
	}

	p, err := r.newPool(ctx, index)
	if err != nil {
		return err
	}

	r.buffers.pools[index] = p
	return nil
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
