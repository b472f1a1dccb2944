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

// faults makes groups fail, and checks that a new group can then use the same memory.
type faults struct {
	env     *environment
	choices *choices
	buffers *buffers
	calls   *calls
	graphs  *graphs
	tally   *Tally
	timeout time.Duration
}

type mistake int

const (
	mistakeAbort mistake = iota
	mistakeSwap          // the faulty rank launches two graphs in the wrong order
	mistakeCount
)

// testFault calls fault with a new group. fault must make the group fail and return a buffer, which
// testFault uses in another new group.
func (f *faults) testFault(
	ctx context.Context, s *symmem.Stream, bytes int64, tag uint64,
	fault func(*symmem.Group) (symmem.Buffer, error),
) error {
	if err := f.env.barrier(ctx); err != nil {
		return err
	}
	g, err := f.env.rt.World().Split(ctx, 0, f.env.rt.Rank())
	if err != nil {
		return err
	}
	b, err := fault(g)
	if err != nil {
		return err
	}
	f.tally.Aborts++
	if err := f.env.barrier(ctx); err != nil {
		return err
	}
	if g, err = f.env.rt.World().Split(ctx, 0, -f.env.rt.Rank()); err != nil {
		return err
	}
	if err := f.calls.allReduce(ctx, g, s, b, bytes, ^tag); err != nil {
		return fmt.Errorf("in a new group after a fault: %w", err)
	}
	if err := f.env.barrier(ctx); err != nil {
		return err
	}
	return errors.Join(g.Close(), b.Free())
}

// failInReplay replays two graphs while one rank makes a mistake. All ranks must get an error, and
// each result must be right or marked as invalid.
func (f *faults) failInReplay(ctx context.Context) error {
	faultyRank, s := f.choices.IntN(f.env.rt.Size()), choose(f.choices, f.env.streams)
	p := choose(f.choices, f.buffers.pools)
	kind := mistake(f.choices.IntN(int(mistakeCount)))
	bytes, tag := f.choices.drawSize(), f.choices.Uint64()
	if err := f.graphs.close(ctx, nil); err != nil {
		return err
	}
	return f.testFault(ctx, s, bytes, tag, func(g *symmem.Group) (b symmem.Buffer, err error) {
		// NCCL's kernels would leave arbitrary results after an abort.
		if err := g.SetPath(ctx, symmem.PathDirect); err != nil {
			return b, err
		}
		var recs [2]*recording
		for i := range recs {
			if recs[i], err = f.captureSum(ctx, g, s, p, bytes, tag+uint64(i)); err != nil {
				return b, err
			}
		}
		isDirect, err := isOnDirectPath(recs[0].calls[0])
		if err != nil {
			return b, err
		}
		if !isDirect {
			kind = mistakeAbort // other kernels do not compare replays
		}
		if err := f.env.barrier(ctx); err != nil {
			return b, err
		}
		if err := f.replayWithMistake(ctx, g, recs, kind, faultyRank == g.Rank(), isDirect); err != nil {
			return b, err
		}
		if err := f.env.barrier(ctx); err != nil {
			return b, err
		}
		return p.AllocOn(s, bytes)
	})
}

// isOnDirectPath reports whether a call takes the direct path, whose kernels mark invalid results.
func isOnDirectPath(call *testCall) (bool, error) {
	explanation, err := call.Group.Explain(
		call.Operation, call.Send, call.Recv, call.Count, call.DataType)
	return explanation.Path == "direct", err
}

func (f *faults) captureSum(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, p *symmem.Pool, bytes int64, tag uint64,
) (*recording, error) {
	rec := &recording{}
	if err := rec.addCall(newAllReduce(g, s, bytes, tag), s, p, bytes); err != nil {
		return nil, err
	}
	if err := s.Synchronize(ctx); err != nil {
		return nil, err
	}
	return rec, f.graphs.recordOn(ctx, rec, s)
}

// replayWithMistake replays the graphs, waits until the group has failed, and checks the results.
// This rank makes the mistake if isFaulty is set.
func (f *faults) replayWithMistake(
	ctx context.Context, g *symmem.Group, recs [2]*recording, kind mistake, isFaulty, isDirect bool,
) error {
	s := recs[0].calls[0].stream
	order := []int{0, 1}
	if isFaulty && kind == mistakeSwap {
		order = []int{1, 0}
	}
	for _, rec := range recs {
		if err := rec.overwriteResults(s); err != nil {
			return err
		}
	}
	if isFaulty && kind == mistakeAbort {
		g.Abort()
	} else {
		for _, i := range order {
			// A launch after the group has failed returns the group's fault.
			if err := ignoreFault(recs[i].graph.Launch(s)); err != nil {
				return err
			}
		}
	}
	select {
	case <-g.Ended():
	case <-time.After(2 * f.timeout):
		return fmt.Errorf("rank %d did not report a fault in replays", f.env.rt.Rank())
	}
	// Clear the fault, so that later steps do not get it. On the nccl backend, each stream returns it
	// once.
	for _, s := range f.env.streams {
		_ = s.Synchronize(ctx)
	}
	for _, rec := range recs {
		if err := rec.readResults(s); err != nil {
			return err
		}
	}
	if err := s.Synchronize(ctx); err != nil && g.Cause(ctx) == nil {
		return err
	}
	for _, rec := range recs {
		if isDirect {
			f.checkOutputAfterFault(rec.calls[0])
		}
	}
	return errors.Join(recs[0].close(), recs[1].close(), ignoreFault(g.Close()))
}

func ignoreFault(err error) error {
	if errors.Is(err, symmem.ErrAborted) || errors.As(err, new(*symmem.DivergenceError)) ||
		errors.As(err, new(*symmem.MismatchError)) {
		return nil
	}
	return err
}

// checkOutputAfterFault checks the result of a call that a fault may have interrupted: either all
// elements are unchanged, or every element is right or NaN.
func (f *faults) checkOutputAfterFault(call *testCall) {
	order := binary.NativeEndian
	f.tally.Calls++
	all, unchanged, right, nan := int64(len(call.want)/4), int64(0), int64(0), int64(0)
	for i := 0; i < len(call.want); i += 4 {
		switch got := order.Uint32(call.Got[i:]); {
		case got == order.Uint32(call.want[i:]):
			right++
		case got == workload.Junk*0x01010101 || got == uint32(^byte(workload.Junk))*0x01010101:
			unchanged++
		case math.IsNaN(float64(math.Float32frombits(got))):
			nan++
		}
	}
	if unchanged == all || right == all || right+nan == all {
		return
	}
	f.tally.Wrong += all - right - nan
	f.tally.addFinding(fmt.Sprintf("round %d, rank %d, %s: after a fault %d of %d elements are "+
		"right, %d are NaN and %d are unchanged", f.calls.round, f.env.rt.Rank(), call.describe(),
		right, all, nan, unchanged))
}

// abort creates a group of all ranks, which one rank aborts while the others call a collective.
func (f *faults) abort(ctx context.Context) error {
	faultyRank, s := f.choices.IntN(f.env.rt.Size()), choose(f.choices, f.env.streams)
	p := choose(f.choices, f.buffers.pools)
	before, bytes, tag := f.choices.IntN(3), f.choices.drawSize(), f.choices.Uint64()
	return f.testFault(ctx, s, bytes, tag, func(g *symmem.Group) (symmem.Buffer, error) {
		// The buffer is used on one stream only, so that Free takes effect at the same step on all
		// ranks.
		b, err := p.AllocOn(s, bytes)
		if err != nil {
			return b, err
		}
		for i := range before {
			if err := f.calls.allReduce(ctx, g, s, b, bytes, tag+uint64(i)); err != nil {
				return b, err
			}
		}
		if f.env.rt.Device().Backend == "nccl" {
			// NCCL's window kernels do not check for aborts, so they would wait forever.
			if err := g.SetPath(ctx, symmem.PathPlain); err != nil {
				return b, err
			}
		}
		return b, f.abortAndClose(ctx, g, s, b, faultyRank == g.Rank())
	})
}

func (f *faults) abortAndClose(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, b symmem.Buffer, isFaulty bool,
) error {
	if isFaulty {
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
		return fmt.Errorf("waiting for the abort of the group: got %w, want ErrAborted", err)
	}
	// The stream may return the fault once more.
	if err := s.Synchronize(ctx); err != nil && !errors.Is(err, symmem.ErrAborted) {
		return fmt.Errorf("synchronizing after the fault: %w", err)
	}
	if err := g.Close(); err != nil {
		return fmt.Errorf("closing the aborted group: %w", err)
	}
	return nil
}
