package random

import (
	"context"
	"math/rand/v2"

	"symmem"
)

// step is a kind of step, and how often it is drawn.
type step struct {
	name   string
	weight int
	run    func(*round, context.Context) error
}

// steps are all kinds.
var steps = []step{
	{"allocating", 20, (*round).allocate},
	{"freeing", 14, func(r *round, _ context.Context) error { return r.free() }},
	{"allocating in a scope", 8, (*round).scope},
	{"allocating in a disabled scope", 2, (*round).disabled},
	{"a collective", 24, (*round).collective},
	{"collectives at once", 6, (*round).burst},
	{"capturing", 4, (*round).capture},
	{"replaying", 8, (*round).replay},
	{"replaying several graphs at once", 4, (*round).overlap},
	{"closing a graph", 2, (*round).closeGraph},
	{"splitting", 2, (*round).split},
	{"closing a group", 2, (*round).leave},
	{"choosing a path", 3, (*round).choosePath},
	{"aborting a group", 1, (*round).abort},
	{"breaking a group in replays", 1, (*round).breakReplays},
	{"reserving", 2, (*round).reserve},
	{"trimming", 2, (*round).trim},
	{"closing a pool", 1, (*round).renew},
	{"synchronizing", 3, func(r *round, ctx context.Context) error { return r.settle(ctx) }},
	{"comparing", 1, (*round).agree},
}

// drawStep draws a kind by weight.
func drawStep(draws *rand.Rand) *step {
	all := 0
	for i := range steps {
		all += steps[i].weight
	}
	at := draws.IntN(all)
	i := 0
	for ; at >= steps[i].weight; i++ {
		at -= steps[i].weight
	}
	return &steps[i]
}

// choices are what the path of a group is set to, by weight: over windows mistakes show, and on the
// direct path, which works over windows, too. Where there is none it is as auto.
var choices = []symmem.PathChoice{
	symmem.PathWindow, symmem.PathWindow, symmem.PathDirect, symmem.PathDirect, symmem.PathAuto,
	symmem.PathPlain,
}

// choosePath sets the path of a group.
func (r *round) choosePath(ctx context.Context) error {
	g, choice := one(r, r.groups), one(r, choices)
	if g == nil {
		return nil
	}
	return g.SetPath(ctx, choice)
}

// reserve maps memory ahead, registered with the world or not.
func (r *round) reserve(ctx context.Context) error {
	p, bytes := one(r, r.pools), r.size()
	if r.chance(2) {
		return p.Reserve(ctx, bytes, nil)
	}
	return p.Reserve(ctx, bytes, r.rt.World())
}

// trim gives idle segments back. No graph may be over them. It compares at every level, so that a
// run which is to show wrong sums leaves it out.
func (r *round) trim(ctx context.Context) error {
	p, keep := one(r, r.pools), r.draws.Int64N(2)*r.size()
	if r.config.Placement == symmem.PlaceByAddress && r.rt.Check() == symmem.CheckOff {
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
	r.tally.peak = max(r.tally.peak, r.mapped())
	// Nobody closes while a peer may still read.
	if err := r.meet(ctx); err != nil {
		return err
	}
	if err := r.pools[at].Close(); err != nil {
		return err
	}
	return r.addPool(ctx, at)
}

// agree compares the ledgers of all ranks, if that is not switched off.
func (r *round) agree(ctx context.Context) error {
	if r.rt.Check() == symmem.CheckOff {
		return nil
	}
	return r.rt.World().Check(ctx)
}
