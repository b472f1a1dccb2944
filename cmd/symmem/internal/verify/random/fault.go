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

// faults provokes faults in groups, and checks that a new group works on the same memory.
type faults struct {
	world   *world
	draws   *draws
	buffers *buffers
	calls   *calls
	graphs  *graphs
	tally   *Tally
	timeout time.Duration
}

// mistake enumerates what one rank does wrong while the graphs of a group are replayed.
type mistake int

const (
	abortsGroup mistake = iota
	swapsGraphs         // launches the graphs in another order
	mistakes
)

// faulty makes a group of all ranks and calls fault, which ends the group and returns a buffer. It
// then checks a call of a new group on that buffer.
func (f *faults) faulty(
	ctx context.Context, s *symmem.Stream, bytes int64, tag uint64,
	fault func(*symmem.Group) (symmem.Buffer, error),
) error {
	if err := f.world.meet(ctx); err != nil {
		return err
	}
	g, err := f.world.rt.World().Split(ctx, 0, f.world.rt.Rank())
	if err != nil {
		return err
	}
	b, err := fault(g)
	if err != nil {
		return err
	}
	f.tally.Aborts++
	if err := f.world.meet(ctx); err != nil {
		return err
	}
	if g, err = f.world.rt.World().Split(ctx, 0, -f.world.rt.Rank()); err != nil {
		return err
	}
	if err := f.calls.sum(ctx, g, s, b, bytes, ^tag); err != nil {
		return fmt.Errorf("in a new group after a fault: %w", err)
	}
	if err := f.world.meet(ctx); err != nil {
		return err
	}
	return errors.Join(g.Close(), b.Free())
}

// breakReplays captures two graphs of the same sum over a group of all ranks, and makes one rank
// make a mistake when they are replayed. All ranks must get an error, and each result must be
// right or marked as invalid.
func (f *faults) breakReplays(ctx context.Context) error {
	who, s := f.draws.IntN(f.world.rt.Size()), one(f.draws, f.world.streams)
	p := one(f.draws, f.buffers.pools)
	how, bytes, tag := mistake(f.draws.IntN(int(mistakes))), f.draws.size(), f.draws.Uint64()
	if err := f.graphs.close(ctx, nil); err != nil {
		return err
	}
	return f.faulty(ctx, s, bytes, tag, func(g *symmem.Group) (b symmem.Buffer, err error) {
		// Aborted kernels of NCCL leave arbitrary results, and do not compare replays.
		if err := g.SetPath(ctx, symmem.PathDirect); err != nil {
			return b, err
		}
		var recs [2]*recording
		for i := range recs {
			if recs[i], err = f.sumGraph(ctx, g, s, p, bytes, tag+uint64(i)); err != nil {
				return b, err
			}
		}
		direct, err := goesDirect(recs[0].calls[0])
		if err != nil {
			return b, err
		}
		if !direct {
			how = abortsGroup
		}
		if err := f.world.meet(ctx); err != nil {
			return b, err
		}
		if err := f.broken(ctx, g, recs, how, who == g.Rank(), direct); err != nil {
			return b, err
		}
		if err := f.world.meet(ctx); err != nil {
			return b, err
		}
		return p.AllocOn(s, bytes)
	})
}

// goesDirect reports whether a call takes the direct path, whose kernels mark invalid results.
func goesDirect(e *exchange) (bool, error) {
	x, err := e.Group.Explain(e.Operation, e.Send, e.Recv, e.Count, e.DataType)
	return x.Path == "direct", err
}

// sumGraph captures a sum of float32 and the copy of its result.
func (f *faults) sumGraph(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, p *symmem.Pool, bytes int64, tag uint64,
) (*recording, error) {
	rec := &recording{}
	if err := rec.add(sumOf(g, s, bytes, tag), s, p, bytes); err != nil {
		return nil, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return nil, err
	}
	return rec, f.graphs.recordOn(ctx, rec, s)
}

// broken replays the graphs, waits for the fault, checks the results, and closes the graphs and
// the group.
func (f *faults) broken(
	ctx context.Context, g *symmem.Group, recs [2]*recording, how mistake, mine, direct bool,
) error {
	s := recs[0].calls[0].on
	order := []int{0, 1}
	if mine && how == swapsGraphs {
		order = []int{1, 0}
	}
	for _, rec := range recs {
		if err := rec.spoil(s); err != nil {
			return err
		}
	}
	if mine && how == abortsGroup {
		g.Abort()
	} else {
		for _, i := range order {
			// A launch after the fault returns an error.
			if err := ignoreFault(recs[i].graph.Launch(s)); err != nil {
				return err
			}
		}
	}
	select {
	case <-g.Ended():
	case <-time.After(2 * f.timeout):
		return fmt.Errorf("a fault in replays was not reported on rank %d", f.world.rt.Rank())
	}
	// The library may have replayed a graph on each of its streams, so each returns the fault, once.
	for range 2 {
		for _, s := range f.world.streams {
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
			f.verifyBroken(rec.calls[0])
		}
	}
	return errors.Join(recs[0].close(), recs[1].close(), ignoreFault(g.Close()))
}

// ignoreFault returns nil for the provoked fault, else err.
func ignoreFault(err error) error {
	if errors.Is(err, symmem.ErrAborted) || errors.As(err, new(*symmem.DivergenceError)) ||
		errors.As(err, new(*symmem.MismatchError)) {
		return nil
	}
	return err
}

// verifyBroken checks the result of a call that a fault may have ended: either no element has
// changed, or each is right or NaN.
func (f *faults) verifyBroken(e *exchange) {
	order := binary.NativeEndian
	f.tally.Calls++
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
	f.tally.Wrong += all - right - none
	f.tally.note(fmt.Sprintf("round %d, rank %d, %s: after a fault %d of %d elements are right, "+
		"%d are NaN and %d are unchanged", f.calls.round, f.world.rt.Rank(), e.describe(),
		right, all, none, old))
}

// abort makes one rank abort a group of all ranks during a collective of the others.
func (f *faults) abort(ctx context.Context) error {
	who, s := f.draws.IntN(f.world.rt.Size()), one(f.draws, f.world.streams)
	p := one(f.draws, f.buffers.pools)
	before, bytes, tag := f.draws.IntN(3), f.draws.size(), f.draws.Uint64()
	return f.faulty(ctx, s, bytes, tag, func(g *symmem.Group) (symmem.Buffer, error) {
		// Only one stream uses the buffer, so that its free takes effect at the same time on all ranks.
		b, err := p.AllocOn(s, bytes)
		if err != nil {
			return b, err
		}
		for i := range before {
			if err := f.calls.sum(ctx, g, s, b, bytes, tag+uint64(i)); err != nil {
				return b, err
			}
		}
		if f.world.rt.Device().Backend == "nccl" {
			// NCCL's window kernels do not check for an abort. A kernel that waits for the aborting rank
			// would run until the process exits.
			if err := g.SetPath(ctx, symmem.PathPlain); err != nil {
				return b, err
			}
		}
		return b, f.aborted(ctx, g, s, b, who == g.Rank())
	})
}

// aborted aborts the group, or makes calls until another rank has aborted it, and closes the
// group.
func (f *faults) aborted(
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
