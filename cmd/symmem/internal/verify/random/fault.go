package random

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// misdeed is the mistake of a rank when graphs of a group are replayed.
type misdeed int

// aborts aborts the group, swaps launches the graphs in another order.
const (
	aborts misdeed = iota
	swaps
	misdeeds
)

// faulty makes a group of all ranks, calls fault, which ends the group and returns a buffer, and
// checks a call of a new group on that buffer.
func (r *round) faulty(
	ctx context.Context, s *symmem.Stream, bytes int64, tag uint64,
	fault func(*symmem.Group) (symmem.Buffer, error),
) error {
	if err := r.meet(ctx); err != nil {
		return err
	}
	g, err := r.rt.World().Split(ctx, 0, r.rt.Rank())
	if err != nil {
		return err
	}
	b, err := fault(g)
	if err != nil {
		return err
	}
	r.tally.Aborts++
	if err := r.meet(ctx); err != nil {
		return err
	}
	if g, err = r.rt.World().Split(ctx, 0, -r.rt.Rank()); err != nil {
		return err
	}
	if err := r.sum(ctx, g, s, b, bytes, ^tag); err != nil {
		return fmt.Errorf("in a new group after a fault: %w", err)
	}
	if err := r.meet(ctx); err != nil {
		return err
	}
	return errors.Join(g.Close(), b.Free())
}

// breakReplays captures two graphs of the same sum over a group of all ranks, and makes one rank
// commit a misdeed when they are replayed. All ranks must get an error, each result must be right
// or marked, and a new group must work on the same memory.
func (r *round) breakReplays(ctx context.Context) error {
	if r.showsTheBug() {
		return nil
	}
	who, s, p := r.draws.IntN(r.rt.Size()), one(r, r.streams), one(r, r.pools)
	deed, bytes, tag := misdeed(r.draws.IntN(int(misdeeds))), r.size(), r.draws.Uint64()
	if err := r.closeGraphs(ctx, nil); err != nil {
		return err
	}
	return r.faulty(ctx, s, bytes, tag, func(g *symmem.Group) (b symmem.Buffer, err error) {
		// NCCL's kernels leave anything when they are aborted, and do not compare replays.
		if err := g.SetPath(ctx, symmem.PathDirect); err != nil {
			return b, err
		}
		var recs [2]*recording
		for i := range recs {
			if recs[i], err = r.sumGraph(ctx, g, s, p, bytes, tag+uint64(i)); err != nil {
				return b, err
			}
		}
		direct, err := goesDirect(recs[0].calls[0])
		if err != nil {
			return b, err
		}
		if !direct {
			deed = aborts
		}
		if err := r.meet(ctx); err != nil {
			return b, err
		}
		if err := r.broken(ctx, g, recs, deed, who == g.Rank(), direct); err != nil {
			return b, err
		}
		if err := r.meet(ctx); err != nil {
			return b, err
		}
		return p.AllocOn(s, bytes)
	})
}

// goesDirect reports whether a call takes the direct path, whose kernels mark unfinished results.
func goesDirect(e *exchange) (bool, error) {
	x, err := e.Group.Explain(e.Operation, e.Send, e.Recv, e.Count, e.DataType)
	return x.Path == "direct", err
}

// sumGraph captures a sum of float32 with the copy of its result.
func (r *round) sumGraph(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, p *symmem.Pool, bytes int64, tag uint64,
) (*recording, error) {
	rec := &recording{}
	if err := rec.add(sumOf(g, s, bytes, tag), s, p, bytes); err != nil {
		return nil, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return nil, err
	}
	return rec, r.recordOn(ctx, rec, s)
}

// broken replays the graphs, waits for the fault, checks the results, and closes graphs and group.
func (r *round) broken(
	ctx context.Context, g *symmem.Group, recs [2]*recording, deed misdeed, mine, direct bool,
) error {
	s := recs[0].calls[0].on
	order := []int{0, 1}
	if mine && deed == swaps {
		order = []int{1, 0}
	}
	for _, rec := range recs {
		if err := rec.spoil(s); err != nil {
			return err
		}
	}
	if mine && deed == aborts {
		g.Abort()
	} else {
		for _, i := range order {
			// A launch after the fault is refused.
			if err := ignoreFault(recs[i].graph.Launch(s)); err != nil {
				return err
			}
		}
	}
	select {
	case <-g.Ended():
	case <-time.After(2 * r.config.Timeout):
		return fmt.Errorf("a fault in replays was not reported on rank %d", r.rt.Rank())
	}
	// The library may have replayed a graph on each of its streams, so each returns the fault, once.
	for range 2 {
		for _, s := range r.streams {
			_ = s.Synchronize(ctx)
		}
	}
	for _, rec := range recs {
		if err := rec.read(s); err != nil {
			return err
		}
	}
	if err := s.Synchronize(ctx); err != nil && g.Cause(ctx) == nil {
		return err
	}
	for _, rec := range recs {
		if direct {
			r.verifyBroken(rec.calls[0])
		}
	}
	return errors.Join(recs[0].close(), recs[1].close(), ignoreFault(g.Close()))
}

// ignoreFault returns nil for the fault that was provoked, else err.
func ignoreFault(err error) error {
	if errors.Is(err, symmem.ErrAborted) || errors.As(err, new(*symmem.DivergenceError)) ||
		errors.As(err, new(*symmem.MismatchError)) {
		return nil
	}
	return err
}

// verifyBroken checks the result of a call that a fault may have ended: all elements are unchanged,
// or each is right or NaN.
func (r *round) verifyBroken(e *exchange) {
	order := binary.NativeEndian
	r.tally.Calls++
	all, old, right, none := int64(len(e.want)/4), int64(0), int64(0), int64(0)
	for i := 0; i < len(e.want); i += 4 {
		switch got := order.Uint32(e.Got[i:]); {
		case got == order.Uint32(e.want[i:]):
			right++
		case got == workload.Junk*0x01010101 || got == uint32(^byte(workload.Junk))*0x01010101:
			old++
		case math.IsNaN(float64(math.Float32frombits(got))):
			none++
		}
	}
	if old == all || right == all || right+none == all {
		return
	}
	r.tally.Wrong += all - right - none
	r.tally.note(fmt.Sprintf("round %d, rank %d, %s: after a fault %d of %d elements are right, "+
		"%d are not a number and %d are what was there before", r.number, r.rt.Rank(), e.describe(),
		right, all, none, old))
}

// abort makes one rank abort a group of all ranks while the others are in a collective, and checks
// that a new group works on the same memory.
func (r *round) abort(ctx context.Context) error {
	if r.showsTheBug() {
		return nil
	}
	who, s, p := r.draws.IntN(r.rt.Size()), one(r, r.streams), one(r, r.pools)
	before, bytes, tag := r.draws.IntN(3), r.size(), r.draws.Uint64()
	return r.faulty(ctx, s, bytes, tag, func(g *symmem.Group) (symmem.Buffer, error) {
		// Only one stream uses the buffer, so that it returns to the pool in the same way on all ranks.
		b, err := p.AllocOn(s, bytes)
		if err != nil {
			return b, err
		}
		for i := range before {
			if err := r.sum(ctx, g, s, b, bytes, tag+uint64(i)); err != nil {
				return b, err
			}
		}
		if r.rt.Device().Backend == "nccl" {
			// NCCL's window kernels do not check for an abort: one that waits for the rank that has
			// aborted runs until the process ends.
			if err := g.SetPath(ctx, symmem.PathPlain); err != nil {
				return b, err
			}
		}
		return b, r.aborted(ctx, g, s, b, who == g.Rank())
	})
}

// aborted aborts the group, or makes calls until another rank has, and closes the group.
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
		return fmt.Errorf("waiting for the abort of the group: want ErrAborted, got %w", err)
	}
	// The stream may still return the fault, once.
	if err := s.Synchronize(ctx); err != nil && !errors.Is(err, symmem.ErrAborted) {
		return fmt.Errorf("synchronizing after the fault: %w", err)
	}
	if err := g.Close(); err != nil {
		return fmt.Errorf("closing the aborted group: %w", err)
	}
	return nil
}
