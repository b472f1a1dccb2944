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
	timeout time.Duration // of symmem's waits for other ranks
}

// mistake is something that one rank, the faulty rank, does to make a group fail.
type mistake int

const (
	mistakeAbort mistake = iota // the faulty rank aborts the group instead of launching graphs
	mistakeSwap                 // the faulty rank launches two graphs in the wrong order
	mistakeCount                // number of kinds
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

	const color = 0 // the same on all ranks, so that the groups contain all of them
	rank := f.env.rt.Rank()
	failing, err := f.env.rt.World().Split(ctx, color, rank)
	if err != nil {
		return err
	}

	b, err := fault(failing)
	if err != nil {
		return err
	}

	f.tally.Aborts++
	if err := f.env.barrier(ctx); err != nil {
		return err
	}

	next, err := f.env.rt.World().Split(ctx, color, -rank) // with the ranks in reverse order
	if err != nil {
		return err
	}

	otherTag := ^tag // so that the data differ from those of the failed group
	if err := f.calls.allReduce(ctx, next, s, b, bytes, otherTag); err != nil {
		return fmt.Errorf("in a new group after a fault: %w", err)
	}

	if err := f.env.barrier(ctx); err != nil {
		return err
	}

	closeErr := next.Close()
	freeErr := b.Free()
	return errors.Join(closeErr, freeErr)
}

// failInReplay replays two graphs while one rank makes a mistake. All ranks must get an error, and
// each result must be right or marked as invalid.
func (f *faults) failInReplay(ctx context.Context) error {
	faultyRank := f.choices.IntN(f.env.rt.Size())
	s := choose(f.choices, f.env.streams)
	p := choose(f.choices, f.buffers.pools)
	kind := mistake(f.choices.IntN(int(mistakeCount)))
	bytes := f.choices.drawSize()
	tag := f.choices.Uint64()
	if err := f.graphs.closeAll(ctx); err != nil {
		return err
	}

	return f.testFault(ctx, s, bytes, tag, func(g *symmem.Group) (symmem.Buffer, error) {
		var none symmem.Buffer
		// NCCL's kernels would leave arbitrary results after an abort.
		if err := g.SetPath(ctx, symmem.PathDirect); err != nil {
			return none, err
		}

		var recs [2]*recording
		for i := range recs {
			rec, err := f.captureSum(ctx, g, s, p, bytes, tag+uint64(i))
			if err != nil {
				return none, err
			}

			recs[i] = rec
		}

		isDirect, err := isOnDirectPath(recs[0].calls[0])
		if err != nil {
			return none, err
		}

		if !isDirect {
			kind = mistakeAbort // other kernels do not notice swapped graphs
		}

		if err := f.env.barrier(ctx); err != nil {
			return none, err
		}

		isFaulty := faultyRank == g.Rank()
		if err := f.replayWithMistake(ctx, g, recs, kind, isFaulty, isDirect); err != nil {
			return none, err
		}

		if err := f.env.barrier(ctx); err != nil {
			return none, err
		}

		return p.AllocOn(s, bytes)
	})
}

// isOnDirectPath reports whether a call takes the direct path. After a fault, kernels of this path
// set invalid results to NaN.
func isOnDirectPath(call *testCall) (bool, error) {
	explanation, err := call.Group.Explain(
		call.Operation, call.Send, call.Recv, call.Count, call.DataType)
	if err != nil {
		return false, err
	}

	return explanation.Path == "direct", nil
}

// captureSum captures a graph of an all-reduce on s, with buffers from p.
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

	if err := f.graphs.captureOn(ctx, rec, s); err != nil {
		return nil, err
	}

	return rec, nil
}

// replayWithMistake replays the graphs, waits until the group has failed, and checks the results.
// It then closes the graphs and the group. This rank makes the mistake if isFaulty is set. The
// results are checked only if isDirect is set, because other paths leave arbitrary ones.
func (f *faults) replayWithMistake(
	ctx context.Context, g *symmem.Group, recs [2]*recording, kind mistake, isFaulty, isDirect bool,
) error {
	s := recs[0].calls[0].stream
	for _, rec := range recs {
		if err := rec.overwriteResults(s); err != nil {
			return err
		}
	}

	if isFaulty && kind == mistakeAbort {
		g.Abort()
	} else {
		order := recs
		if isFaulty { // kind is mistakeSwap
			order = [...]*recording{recs[1], recs[0]}
		}

		for _, rec := range order {
			// A launch after the group has failed returns the group's fault.
			if err := ignoreFault(rec.graph.Launch(s)); err != nil {
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
	for _, other := range f.env.streams {
		_ = other.Synchronize(ctx)
	}

	for _, rec := range recs {
		if err := rec.readResults(s); err != nil {
			return err
		}
	}

	err := s.Synchronize(ctx)
	if err != nil && g.Cause(ctx) == nil { // not the fault
		return err
	}

	if isDirect {
		for _, rec := range recs {
			f.checkOutputAfterFault(rec.calls[0])
		}
	}

	firstErr := recs[0].close()
	secondErr := recs[1].close()
	groupErr := ignoreFault(g.Close())
	return errors.Join(firstErr, secondErr, groupErr)
}

// ignoreFault returns nil if err is one of the faults that a mistake causes, and err otherwise.
func ignoreFault(err error) error {
	var divergence *symmem.DivergenceError
	var mismatch *symmem.MismatchError
	switch {
	case errors.Is(err, symmem.ErrAborted):
		return nil
	case errors.As(err, &divergence), errors.As(err, &mismatch): // ranks launched different graphs
		return nil
	}

	return err
}

// repeatByte returns a word of four equal bytes.
func repeatByte(b byte) uint32 { return uint32(b) * 0x01010101 }

// checkOutputAfterFault checks the float32 result of a call that a fault may have interrupted:
// either all elements are unchanged, or every element is right or NaN.
func (f *faults) checkOutputAfterFault(call *testCall) {
	const elementBytes = 4
	order := binary.NativeEndian
	f.tally.Calls++
	all := int64(len(call.want) / elementBytes)
	var unchanged, right, nan int64
	for i := 0; i < len(call.want); i += elementBytes {
		got := order.Uint32(call.Got[i:])
		want := order.Uint32(call.want[i:])
		switch {
		case got == want:
			right++
		case got == repeatByte(workload.Junk): // written by the graph, before the call
			unchanged++
		case got == repeatByte(^byte(workload.Junk)): // written by overwriteResults
			unchanged++
		case math.IsNaN(float64(math.Float32frombits(got))):
			nan++
		}
	}

	if unchanged == all || right+nan == all {
		return
	}

	f.tally.Wrong += all - right - nan
	f.tally.addFinding(fmt.Sprintf("round %d, rank %d, %s: after a fault %d of %d elements are "+
		"right, %d are NaN and %d are unchanged", f.calls.round, f.env.rt.Rank(), call.describe(),
		right, all, nan, unchanged))
}

// abort creates a group of all ranks, which one rank aborts while the others call a collective.
func (f *faults) abort(ctx context.Context) error {
	faultyRank := f.choices.IntN(f.env.rt.Size())
	s := choose(f.choices, f.env.streams)
	p := choose(f.choices, f.buffers.pools)
	callsBefore := f.choices.IntN(3)
	bytes := f.choices.drawSize()
	tag := f.choices.Uint64()
	return f.testFault(ctx, s, bytes, tag, func(g *symmem.Group) (symmem.Buffer, error) {
		// The buffer is used on one stream only, so that Free takes effect at the same step on all
		// ranks.
		b, err := p.AllocOn(s, bytes)
		if err != nil {
			return b, err
		}

		for i := range callsBefore {
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

		isFaulty := faultyRank == g.Rank()
		return b, f.abortAndClose(ctx, g, s, b, isFaulty)
	})
}

// abortAndClose makes calls until the group fails, and closes it. If isFaulty is set, this rank
// aborts the group first.
func (f *faults) abortAndClose(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, b symmem.Buffer, isFaulty bool,
) error {
	if isFaulty {
		g.Abort()
	}

	const count = 1
	m := b.Memory()
	var err error
	for err == nil { // ends, because a call fails after the abort
		err = g.AllReduce(ctx, m, m, count, symmem.Float32, symmem.Sum, s)
		if err == nil {
			err = s.Synchronize(ctx)
		}
	}

	if !errors.Is(err, symmem.ErrAborted) {
		return fmt.Errorf("a call in an aborted group must return ErrAborted, but returned: %w", err)
	}

	// Clear the fault: if the call returned it, the stream returns it once more.
	err = s.Synchronize(ctx)
	if err != nil && !errors.Is(err, symmem.ErrAborted) {
		return fmt.Errorf("synchronizing after the fault: %w", err)
	}

	if err := g.Close(); err != nil {
		return fmt.Errorf("closing the aborted group: %w", err)
	}

	return nil
}
