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
	return g.run(ctx, s, &collective{
		operation: driver.AllReduce, send: send, recv: recv, count: count, dataType: t, reduceOp: op,
	})
}

// AllGather gathers count elements of every rank's send, in group order, into every rank's recv. In
// place, send is this rank's part of recv.
func (g *Group) AllGather(
	ctx context.Context, send, recv Memory, count int64, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllGather, send: send, recv: recv, count: count, dataType: t,
	})
}

// ReduceScatter combines every rank's send, of count elements for each rank, and stores this
// rank's part into recv. In place, recv is this rank's part of send.
func (g *Group) ReduceScatter(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.ReduceScatter, send: send, recv: recv, count: count, dataType: t,
		reduceOp: op,
	})
}

// Broadcast copies count elements of the root's send into every rank's recv. Every rank passes its
// own send, although only the root's is read: it must lie in a window.
func (g *Group) Broadcast(
	ctx context.Context, send, recv Memory, count int64, t DataType, root int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Broadcast, send: send, recv: recv, count: count, dataType: t, root: root,
	})
}

// Reduce combines count elements of every rank's send into the root's recv. Every rank passes its
// own recv, although only the root's is written.
func (g *Group) Reduce(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, root int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Reduce, send: send, recv: recv, count: count, dataType: t, reduceOp: op,
		root: root,
	})
}

// AllToAll sends count elements of send to each rank, and gathers count elements of each into
// recv.
func (g *Group) AllToAll(
	ctx context.Context, send, recv Memory, count int64, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllToAll, send: send, recv: recv, count: count, dataType: t,
	})
}

// Send is SendTagged with tag 0.
func (g *Group) Send(
	ctx context.Context, send Memory, count int64, t DataType, peer int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer,
	})
}

// Recv is RecvTagged with tag 0.
func (g *Group) Recv(
	ctx context.Context, recv Memory, count int64, t DataType, peer int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer,
	})
}

// Barrier is a collective without data.
func (g *Group) Barrier(ctx context.Context, s *Stream) error {
	return g.run(ctx, s, &collective{operation: driver.Barrier, dataType: Uint8})
}

// run queues a collective. The path of a call that has a plan is hot: it has few function calls and
// no defer. Nothing on it runs code of the program, so nothing panics between enter and leave.
func (g *Group) run(ctx context.Context, s *Stream, c *collective) error {
	if s == nil {
		s = g.rt.stream
	}
	if s.rt != g.rt {
		return invalid("%v on group %s: the stream is of another runtime", c.operation, g.id)
	}
	in, err := enter(c.send.pool, c.recv.pool)
	if err != nil {
		return g.calls.refused(c, err)
	}
	if g.calls.site.Load() != c.site {
		g.calls.site.Store(c.site)
	}
	p := g.calls.kept(c)
	if p == nil || s.borrows(c) {
		return g.runSlowly(ctx, s, c, p, in)
	}
	if g.rt.opts.OnEvent != nil {
		g.events.submit(p, c.site, s)
	}
	if s.adopted != nil {
		err = g.launchAdopted(s, p)
	} else {
		err = g.comm.Launch(s.queue, p.plan)
	}
	in.leave(c.send.pool, c.recv.pool)
	if err != nil {
		return g.life.awaitCause(err)
	}
	return nil
}

// runSlowly runs a call that has no plan yet (p is nil), or whose use of buffers is recorded. The
// use is recorded even if the call is then refused, unless the call is invalid on every rank.
func (g *Group) runSlowly(ctx context.Context, s *Stream, c, p *collective, in visit) error {
	defer in.leave(c.send.pool, c.recv.pool)
	residual, weight := c.others()
	more, err := enter(residual.pool, weight.pool)
	if err != nil {
		return g.calls.refused(c, err)
	}
	defer more.leave(residual.pool, weight.pool)
	if p == nil {
		if p, err = g.calls.check(c); err != nil {
			return err
		}
	}
	borrows := s.borrows(c)
	if borrows && g.life.fault.Load() != resolved {
		// Before the call can be refused because of another rank, which may have queued it.
		if err := errors.Join(s.uses(c.send, c.recv), s.uses(residual, weight)); err != nil {
			return err
		}
	}
	if p.plan == nil {
		if err := g.calls.prepare(ctx, p, s); err != nil {
			return g.life.failStream(s, err)
		}
	}
	if g.rt.opts.OnEvent != nil {
		g.events.submit(p, c.site, s)
	}
	if s.adopted != nil {
		err = g.launchAdopted(s, p)
	} else {
		err = g.comm.Launch(s.queue, p.plan)
	}
	if borrows {
		s.usesStill(c.send, c.recv)
		s.usesStill(residual, weight)
	}
	return g.life.awaitCause(err)
}

// SendTagged sends count elements to a peer of the group, which calls RecvTagged with the same tag,
// from 0 to MaxTag.
func (g *Group) SendTagged(
	ctx context.Context, send Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer, tag: tag,
	})
}

// RecvTagged receives count elements from a peer of the group, or from AnySource, which calls
// SendTagged with the same tag. Receives of a tag get their messages in the order of their calls;
// one from AnySource takes the message that arrives first, and later ones of the tag wait for that.
// Interop.Do reports the sender to Call.Arrived.
func (g *Group) RecvTagged(
	ctx context.Context, recv Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer, tag: tag,
	})
}

// AllToAllV sends a part of send to each rank and gathers a part of each into recv, as described by
// splits. Parts may have any size, even 0, and differ between ranks; those of recv must not
// overlap. If a rank sends a peer another number of elements than the peer expects, no buffer is
// written, and all ranks (without CheckEvery only those concerned) return a MessageError that names
// the pairs. send may be recv. No memory is registered. AllToAll is another operation, even if all
// counts are equal. The lists are copied.
func (g *Group) AllToAllV(
	ctx context.Context, send, recv Memory, splits Splits, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllToAllV, send: send, recv: recv, dataType: t, splits: &splits,
	})
}

// AllReduceRMSNorm fuses the end of a layer whose rows are split over ranks: an all-reduce, then a
// second kernel that adds the residual and normalizes. For every element
//
//	y        = bfloat16(the sum of all ranks' Input)       as AllReduce gives it
//	Residual = bfloat16(y + Residual)
//	Output   = bfloat16(Residual / sqrt(mean(Residual²) + Epsilon) * Weight)
//
// with float32 between the roundings and the mean over a row. Every rank and every run gets the
// same bits, and those of a row do not depend on the number of rows. Residual has the same bits as
// after the three separate steps; Output is within 34 units of float32 (2^-24) of the exact norm
// before its last rounding.
//
// Only the direct path can run it. Otherwise all ranks return an ErrUnsupported with the reason,
// and callers run the three steps. Reasons are a backend without kernels, ranks that cannot reach
// each other's memory, more rows than fit into exchange memory whose Input or Output is not
// symmetric, or a path that Options.Path or SetPath has chosen. Other errors are those of all
// collectives; after a fault Residual and Output are undefined.
func (g *Group) AllReduceRMSNorm(ctx context.Context, a NormArgs, s *Stream) error {
	return g.normalize(ctx, a, s, PathDefault, 0)
}

// normalize runs AllReduceRMSNorm on a path, for a call site.
func (g *Group) normalize(
	ctx context.Context, a NormArgs, s *Stream, choice PathChoice, site uint32,
) error {
	c := &collective{
		operation: driver.AllReduceRMSNorm, dataType: BFloat16, reduceOp: Sum,
		send: a.Input, recv: a.Output, count: a.Rows * a.Hidden, choice: choice, site: site,
	}
	c.norm = normLike(g.calls.plans[c.slot(a.Weight.Address())].Load(), &a)
	return g.run(ctx, s, c)
}

// launchAdopted queues a plan on an adopted stream, or records it if the owner captures the stream.
func (g *Group) launchAdopted(s *Stream, p *collective) error {
	if s.capturing.Load() || !s.captured() {
		return g.comm.Launch(s.queue, p.plan)
	}
	recorder, ok := g.comm.(driver.Recorder)
	if !ok {
		return fmt.Errorf("%v in a capture of another library: %w", p.operation, ErrUnsupported)
	}
	err := g.rt.captures.beginAdopted(
		fmt.Sprintf("%v in a capture of another library", p.operation), s)
	if err != nil {
		return err
	}
	return recorder.Record(s.queue, p.plan)
}

// Explain returns the path that a collective on these buffers would take now, and why. If the
// tuning table decides, that includes its limits, which may differ for work in place. A reduction
// is taken to be a Sum, and an AllToAllV to have even splits. Explain queues nothing and asks no
// other rank.
func (g *Group) Explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	e, err := g.calls.explain(op, send, recv, count, t)
	if err != nil {
		return Explanation{}, fmt.Errorf("explaining %v: %w", op, err)
	}
	return e, nil
}
