package random

import (
	"context"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// cuts say which ranks go where in a split of n: a color, or a negative one for a rank that joins
// none, and a key.
var cuts = []func(rank, n, drawn int) (color, key int){
	func(rank, _, _ int) (color, key int) { return 0, rank },
	func(rank, n, _ int) (color, key int) { return 0, n - rank },
	func(rank, _, _ int) (color, key int) { return rank % 2, rank },
	func(rank, n, _ int) (color, key int) { return 2 * rank / n, -rank },
	func(rank, n, drawn int) (color, key int) {
		if n > 1 && rank == drawn%n {
			return -1, 0
		}
		return 7, rank
	},
}

// split makes a group of some or all ranks, unless there are enough.
func (r *round) split(ctx context.Context) error {
	if len(r.groups) >= liveGroups {
		return r.leave(ctx)
	}
	cut, drawn := one(r, cuts), r.draws.IntN(1<<16)
	color, key := cut(r.rt.Rank(), r.rt.Size(), drawn)
	var g *symmem.Group // nil where this rank joins none
	var err error
	if color < 0 {
		err = r.rt.World().SkipSplit(ctx)
	} else {
		g, err = r.rt.World().Split(ctx, color, key)
	}
	if err != nil {
		return err
	}
	r.groups = append(r.groups, g)
	r.tally.Groups++
	return nil
}

// leave closes a group, if there is one other than the world.
func (r *round) leave(ctx context.Context) error {
	if len(r.groups) == 1 {
		return nil
	}
	return r.closeGroup(ctx, 1+r.draws.IntN(len(r.groups)-1))
}

// closeGroup closes the graphs over a group, and then the group.
func (r *round) closeGroup(ctx context.Context, at int) error {
	g := r.groups[at]
	over := func(rec *recording) bool { return rec.number == at }
	if err := r.closeGraphs(ctx, over); err != nil {
		return err
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	r.groups = slices.Delete(r.groups, at, at+1)
	for _, rec := range r.graphs {
		if rec.number > at {
			rec.number--
		}
	}
	if g == nil {
		return nil
	}
	return g.Close()
}

// sum is a checked all-reduce in place.
func (r *round) sum(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, b symmem.Buffer, bytes int64, tag uint64,
) error {
	e := sumOf(g, s, bytes, tag)
	e.sender = b
	if err := e.Place(b.Memory(), b.Memory()); err != nil {
		return err
	}
	return r.checked(ctx, e)
}

// sumOf is an all-reduce of float32 in a group, its size in bytes, on one stream.
func sumOf(g *symmem.Group, s *symmem.Stream, bytes int64, tag uint64) *exchange {
	pattern := workload.Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.Float32, ReduceOp: symmem.Sum,
		Count: bytes / 4, Ranks: g.Size(), Tag: tag,
	}
	return &exchange{Call: workload.Call{Pattern: pattern, Group: g}, from: s, on: s}
}

// choices are what the path of a group is set to, by weight. Mistakes show on the window path, and
// on the direct path, which works over windows, too. Where that is not possible the choice is as
// good as auto.
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

// agree compares the ledgers of all ranks, if that is not switched off.
func (r *round) agree(ctx context.Context) error {
	if r.rt.Check() == symmem.CheckOff {
		return nil
	}
	return r.rt.World().Check(ctx)
}
