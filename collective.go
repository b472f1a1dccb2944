package symmem

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
)

// AllReduce combines count elements of every rank's send into every rank's recv.
func (g *Group) AllReduce(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.AllReduce, send: send, recv: recv, count: count, dataType: t, reduceOp: op,
	}, noExtras)
}

// AllGather gathers count elements of every rank's send, in group order, into every rank's recv. In
// place, send is this rank's part of recv.
func (g *Group) AllGather(
	ctx context.Context, send, recv Memory, count int64, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.AllGather, send: send, recv: recv, count: count, dataType: t,
	}, noExtras)
}

// ReduceScatter combines every rank's send, of count elements for each rank, and stores this
// rank's part into recv. In place, recv is this rank's part of send.
func (g *Group) ReduceScatter(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.ReduceScatter, send: send, recv: recv, count: count, dataType: t,
		reduceOp: op,
	}, noExtras)
}

// Broadcast copies count elements of the root's send into every rank's recv. Every rank gives its
// own send, although only the root's is read: that is where windows are found.
func (g *Group) Broadcast(
	ctx context.Context, send, recv Memory, count int64, t DataType, root int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Broadcast, send: send, recv: recv, count: count, dataType: t, root: root,
	}, noExtras)
}

// Reduce combines count elements of every rank's send into the root's recv. Every rank gives its
// own recv, although only the root's is written.
func (g *Group) Reduce(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, root int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Reduce, send: send, recv: recv, count: count, dataType: t, reduceOp: op,
		root: root,
	}, noExtras)
}

// AllToAll sends count elements of send to each rank, and gathers count elements of each into
// recv.
func (g *Group) AllToAll(
	ctx context.Context, send, recv Memory, count int64, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.AllToAll, send: send, recv: recv, count: count, dataType: t,
	}, noExtras)
}

// Send is SendTagged with tag 0.
func (g *Group) Send(
	ctx context.Context, send Memory, count int64, t DataType, peer int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer,
	}, noExtras)
}

// Recv is RecvTagged with tag 0.
func (g *Group) Recv(
	ctx context.Context, recv Memory, count int64, t DataType, peer int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer,
	}, noExtras)
}

// Barrier is a collective without data.
func (g *Group) Barrier(ctx context.Context, s *Stream) error {
	return g.run(ctx, s, &request{operation: driver.Barrier, dataType: Uint8}, noExtras)
}

// run launches a collective, unless a pool of its buffers is closed.
func (g *Group) run(ctx context.Context, s *Stream, r *request, e *extras) error {
	if err := enter(r.send.pool, r.recv.pool); err != nil {
		return planner{g}.refused(r, err)
	}
	defer leave(r.send.pool, r.recv.pool)
	if e == noExtras {
		return g.launch(ctx, s, r, e)
	}
	if err := enter(e.others[0].pool, e.others[1].pool); err != nil {
		return planner{g}.refused(r, err)
	}
	defer leave(e.others[0].pool, e.others[1].pool)
	return g.launch(ctx, s, r, e)
}

// launch plans a collective and queues it. It records the call in the histories of its buffers,
// even if it then refuses it, unless the call is invalid on every rank.
func (g *Group) launch(ctx context.Context, s *Stream, r *request, e *extras) error {
	if s == nil {
		s = g.rt.stream
	}
	if s.rt != g.rt {
		return invalid("%v on group %s: the stream is of another runtime", r.operation, g.id)
	}
	if g.site.Load() != e.site {
		g.site.Store(e.site)
	}
	p, err := planner{g}.valid(r, e)
	if err != nil {
		return err
	}
	borrows := s.capturing.Load() || e != noExtras ||
		r.send.extent.stream() != s.number || r.recv.extent.stream() != s.number
	if borrows && g.fault.Load() != resolved {
		// Before the call can be refused for what another rank has done: it may have been queued there.
		err := errors.Join(s.uses(r.send, r.recv), s.uses(e.others[0], e.others[1]))
		if err != nil {
			return err
		}
	}
	if p.plan == nil {
		if err := (planner{g}).prepare(ctx, p, s); err != nil {
			return g.failStream(s, err)
		}
	}
	if s.adopted != nil {
		err = g.launchAdopted(s, p)
	} else {
		err = g.comm.Launch(s.queue, p.plan)
	}
	if borrows {
		s.usesStill(r.send, r.recv)
		s.usesStill(e.others[0], e.others[1])
	}
	if err != nil {
		return g.awaitCause(err)
	}
	return nil
}

// failStream fails a stream where the group's fault is why a call of it is refused: what is queued
// behind may use the result. It returns the error.
func (g *Group) failStream(s *Stream, err error) error {
	if cause := g.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
		s.queue.Fail(cause)
		_ = aligner{g}.see(cause)
	}
	return err
}

// SendTagged sends count elements to a peer of the group, which calls RecvTagged with the same tag,
// from 0 to MaxTag.
func (g *Group) SendTagged(
	ctx context.Context, send Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer,
	}, &extras{tag: tag})
}

// RecvTagged receives count elements from a peer of the group, or from AnySource, which calls
// SendTagged with the same tag. Receives of a tag get their messages in the order of their calls;
// one from AnySource takes the message that arrives first, and later ones of the tag wait for that.
// Interop.Do with Call.Arrived tells whose it is.
func (g *Group) RecvTagged(
	ctx context.Context, recv Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer,
	}, &extras{tag: tag})
}

// AllToAllV sends a part of send to each rank and gathers a part of each into recv, as splits says.
// Parts may have any size, also none, and different ones on each rank; those of recv do not
// overlap. What a rank sends to another is what that one expects of it, else no buffer is written
// and all ranks get a MessageError that names the pairs (with CheckEvery; else the ranks that are
// concerned). send may be recv. It is a collective like the others, but registers no memory.
// AllToAll is another operation, also where all counts are equal. The lists are copied.
func (g *Group) AllToAllV(
	ctx context.Context, send, recv Memory, splits Splits, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.AllToAllV, send: send, recv: recv, dataType: t,
	}, &extras{splits: &splits})
}

// AllReduceRMSNorm is the end of a layer whose rows are split over ranks: an all-reduce, an
// addition and an RMSNorm, in two kernels, the second of which does what is left; measured faster
// than one. In every element
//
//	y        = bfloat16(the sum of all ranks' Input)       as AllReduce gives it
//	Residual = bfloat16(y + Residual)
//	Output   = bfloat16(Residual / sqrt(mean(Residual²) + Epsilon) * Weight)
//
// with float32 between the roundings; the mean is that of a row. Every rank gets the same bits, in
// every run, and a row the same whatever the number of rows. Residual is what the three steps give,
// to the bit; Output is within 34 units of float32 (2^-24) of the exact norm before its last
// rounding.
//
// It takes the direct path or none: ErrUnsupported says why there is none, on all ranks alike, and
// callers then take the three steps. Reasons are a backend without kernels, ranks that cannot
// reach each other's memory, more rows than fit into exchange memory whose Input or Output is not
// symmetric, or a path that Options.Path or SetPath has chosen. Other errors are those of all
// collectives; after a fault Residual and Output are undefined.
func (g *Group) AllReduceRMSNorm(ctx context.Context, a NormArgs, s *Stream) error {
	return g.normalize(ctx, a, s, 0)
}

// normalize is AllReduceRMSNorm for a place.
func (g *Group) normalize(ctx context.Context, a NormArgs, s *Stream, site uint32) error {
	e := a.extras()
	e.site = site
	return g.run(ctx, s, &request{
		operation: driver.AllReduceRMSNorm, dataType: BFloat16, reduceOp: Sum,
		send: a.Input, recv: a.Output, count: a.Rows * a.Hidden,
	}, &e)
}

// launchAdopted queues a plan on an adopted stream, or puts it into the capture of the owner.
func (g *Group) launchAdopted(s *Stream, p *preparedPlan) error {
	if s.capturing.Load() || !s.captured() {
		return g.comm.Launch(s.queue, p.plan)
	}
	recorder, ok := g.comm.(driver.Recorder)
	if !ok {
		return fmt.Errorf("%v in a capture of another library: %w", p.operation, ErrUnsupported)
	}
	err := g.rt.betweenRegistrations(fmt.Sprintf("%v in a capture of another library", p.operation),
		func() { g.rt.setCaptured(s, true) })
	if err != nil {
		return err
	}
	return recorder.Record(s.queue, p.plan)
}

// Explain returns the path that a collective on these buffers would take now, and why, with the
// limits of the tuning table if that decides, which may have other ones for work in place. A
// reduction is taken to be a Sum, and an AllToAllV to have even splits. It does nothing and asks
// nobody.
func (g *Group) Explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	e, err := planner{g}.explain(op, send, recv, count, t)
	if err != nil {
		return Explanation{}, fmt.Errorf("explaining %v: %w", op, err)
	}
	return e, nil
}
