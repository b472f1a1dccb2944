package random

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem"
	"symmem/internal/workload"
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
	r.tally.groups++
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

// ErrAbort means that a group was aborted, and a rank has seen something else.
var ErrAbort = errors.New("the group was aborted, but a rank does not say so")

// abort makes a group of all ranks, has a drawn rank abort it while the others are in a collective,
// and shows that a new group works on the same memory.
func (r *round) abort(ctx context.Context) error {
	who, s, p := r.draws.IntN(r.rt.Size()), one(r, r.streams), one(r, r.pools)
	before, bytes, tag := r.draws.IntN(3), r.size(), r.draws.Uint64()
	if err := r.meet(ctx); err != nil {
		return err
	}
	// Only its own stream uses the buffer, so that its way back does not depend on the rank.
	b, err := p.AllocOn(s, bytes)
	if err != nil {
		return err
	}
	g, err := r.rt.World().Split(ctx, 0, r.rt.Rank())
	if err != nil {
		return err
	}
	for i := range before {
		if err := r.sum(ctx, g, s, b, bytes, tag+uint64(i)); err != nil {
			return err
		}
	}
	if r.rt.Device().Backend == "nccl" {
		// NCCL's window kernels do not look for an abort: one that waits for a rank which has
		// aborted instead runs until the process ends.
		if err := g.SetPath(ctx, symmem.PathPlain); err != nil {
			return err
		}
	}
	if err := r.aborted(ctx, g, s, b, who == g.Rank()); err != nil {
		return err
	}
	r.tally.aborts++
	if err := r.meet(ctx); err != nil {
		return err
	}
	return r.replace(ctx, s, b, bytes, tag)
}

// aborted aborts the group or waits for that, and closes it.
func (r *round) aborted(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, b symmem.Buffer, mine bool,
) error {
	if mine {
		g.Abort()
	}
	var err error
	for err == nil {
		m := b.Memory()
		err = g.AllReduce(ctx, m, m, 1, symmem.Float32, symmem.Sum, s)
		if err == nil {
			err = s.Synchronize(ctx)
		}
	}
	if !errors.Is(err, symmem.ErrAborted) {
		return fmt.Errorf("%w: %w", ErrAbort, err)
	}
	// What the stream still knows of the fault is told once.
	if err := s.Synchronize(ctx); err != nil && !errors.Is(err, symmem.ErrAborted) {
		return fmt.Errorf("synchronizing after the fault: %w", err)
	}
	if err := g.Close(); err != nil {
		return fmt.Errorf("closing the aborted group: %w", err)
	}
	return nil
}

// replace makes a group after an abort, uses it, and closes it.
func (r *round) replace(
	ctx context.Context, s *symmem.Stream, b symmem.Buffer, bytes int64, tag uint64,
) error {
	g, err := r.rt.World().Split(ctx, 0, -r.rt.Rank())
	if err != nil {
		return err
	}
	if err := r.sum(ctx, g, s, b, bytes, ^tag); err != nil {
		return fmt.Errorf("in a new group after an abort: %w", err)
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	return errors.Join(g.Close(), b.Free())
}

// sum is a checked all-reduce in place.
func (r *round) sum(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, b symmem.Buffer, bytes int64, tag uint64,
) error {
	e := sumOf(g, s, bytes, tag)
	e.sender = b
	var err error
	if e.send, err = b.Memory().Slice(0, e.Count*4); err != nil {
		return err
	}
	e.recv = e.send
	return r.checked(ctx, e)
}

// sumOf is an all-reduce of so many bytes of float32 in a group, on one stream.
func sumOf(g *symmem.Group, s *symmem.Stream, bytes int64, tag uint64) *exchange {
	return &exchange{
		Pattern: workload.Pattern{
			Operation: symmem.OpAllReduce, DataType: symmem.Float32, ReduceOp: symmem.Sum,
			Count: bytes / 4, Ranks: g.Size(), Tag: tag,
		},
		group: g, from: s, on: s,
	}
}
