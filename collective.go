package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
)

// AllReduce combines every rank's send and stores the result in every recv.
func (g *Group) AllReduce(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllReduce, send: send, recv: recv, count: count, dataType: t, reduceOp: op,
	})
}

// AllGather gathers count elements of every rank's send into every rank's recv.
func (g *Group) AllGather(
	ctx context.Context, send, recv Memory, count int64, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllGather, send: send, recv: recv, count: count, dataType: t,
	})
}

// ReduceScatter combines every rank's send, which has count elements for each rank, and stores this
// rank's part in recv.
func (g *Group) ReduceScatter(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.ReduceScatter, send: send, recv: recv, count: count, dataType: t,
		reduceOp: op,
	})
}

// Broadcast copies the root's send into every rank's recv. Other ranks must also pass a send in a
// window, although it is not read.
func (g *Group) Broadcast(
	ctx context.Context, send, recv Memory, count int64, t DataType, root int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Broadcast, send: send, recv: recv, count: count, dataType: t, root: root,
	})
}

// Reduce combines every rank's send and stores the result in the root's recv. Other ranks must also
// pass a recv.
func (g *Group) Reduce(
	ctx context.Context, send, recv Memory, count int64, t DataType, op ReduceOp, root int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Reduce, send: send, recv: recv, count: count, dataType: t, reduceOp: op,
		root: root,
	})
}

// AllToAll sends count elements to each rank and receives count elements from each rank.
func (g *Group) AllToAll(
	ctx context.Context, send, recv Memory, count int64, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllToAll, send: send, recv: recv, count: count, dataType: t,
	})
}

// Send calls SendTagged with tag 0.
func (g *Group) Send(
	ctx context.Context, send Memory, count int64, t DataType, peer int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer,
	})
}

// Recv calls RecvTagged with tag 0.
func (g *Group) Recv(
	ctx context.Context, recv Memory, count int64, t DataType, peer int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer,
	})
}

// Barrier queues a collective without data. It completes once all ranks have reached it.
func (g *Group) Barrier(ctx context.Context, s *Stream) error {
	return g.run(ctx, s, &collective{operation: driver.Barrier, dataType: Uint8})
}

// run queues a collective. With a plan, it needs no defer: only Options.OnEvent may then panic or
// exit, which submitEntered handles.
func (g *Group) run(ctx context.Context, s *Stream, c *collective) error {
	if s == nil {
		s = g.rt.stream
	}

	if s.rt != g.rt {
		return invalid("%v on group %s: the stream belongs to another runtime", c.operation, g.id)
	}

	use, err := enterPools(c.send.pool, c.recv.pool)
	if err != nil {
		return g.calls.wrapError(c, err)
	}

	if g.calls.site.Load() != c.site {
		g.calls.site.Store(c.site)
	}

	planned := g.calls.cachedPlan(c)
	if planned == nil || s.mustRecordUse(c) {
		return g.runSlowly(ctx, s, c, planned, use)
	}

	if g.rt.recording.isActive() {
		g.events.submitEntered(planned, c, s, use)
	}

	begin := planned.submit.Begin()
	if s.adopted != nil || c.wait {
		err = g.launchOn(s, planned, c.wait)
	} else {
		err = g.comm.Launch(s.queue, planned.plan)
	}

	planned.submit.End(begin)
	use.leave(c.send.pool, c.recv.pool)
	if err != nil {
		return g.life.awaitFault(err)
	}

	return nil
}

// runSlowly queues a call without a plan, or whose use of buffers must be recorded, even if this
// rank refuses the call later: other ranks may queue it.
func (g *Group) runSlowly(
	ctx context.Context, s *Stream, c, planned *collective, use poolUse,
) error {
	defer use.leave(c.send.pool, c.recv.pool)
	otherPools, err := c.enterOthers()
	if err != nil {
		return g.calls.wrapError(c, err)
	}
	defer otherPools.leave()
	if err := g.refusal(); err != nil {
		return g.calls.wrapError(c, err)
	}

	recordGroupInCapture(s, g)
	others := c.otherBuffers()
	if planned == nil {
		if planned, err = g.calls.validatedCopy(c); err != nil {
			return err
		}
	}

	recordUse := s.mustRecordUse(c)
	if recordUse && g.life.faultState.Load() != faultRepaired {
		if err := errors.Join(s.useBoth(c.send, c.recv), s.useBoth(others[0], others[1]),
			s.useBoth(others[2], others[3])); err != nil {
			return err
		}
	}

	if planned.plan == nil {
		if err := g.calls.prepare(ctx, planned, s); err != nil {
			g.life.failStream(s)
			return err
		}
	}

	if g.rt.recording.isActive() {
		g.events.submit(planned, c.site, s)
	}

	begin := planned.submit.Begin()
	if s.adopted != nil || c.wait {
		err = g.launchOn(s, planned, c.wait)
	} else {
		err = g.comm.Launch(s.queue, planned.plan)
	}

	planned.submit.End(begin)
	if recordUse {
		s.useAgain(c.send, c.recv)
		s.useAgain(others[0], others[1])
		s.useAgain(others[2], others[3])
	}

	return g.life.awaitFault(err)
}

type otherPoolUses struct {
	pools         [4]*Pool
	first, second poolUse
}

// enterOthers enters the pools of the call's other buffers, unless the call has entered them: a
// second entry would fail if Close has begun.
func (c *collective) enterOthers() (use otherPoolUses, err error) {
	if !c.hasOtherBuffers() {
		return use, nil
	}

	for i, m := range c.otherBuffers() {
		if !c.hasEntered(m.pool) && !slices.Contains(use.pools[:i], m.pool) {
			use.pools[i] = m.pool
		}
	}

	if use.first, err = enterPools(use.pools[0], use.pools[1]); err != nil {
		return use, err
	}

	if use.second, err = enterPools(use.pools[2], use.pools[3]); err != nil {
		use.first.leave(use.pools[0], use.pools[1])
	}

	return use, err
}

func (u *otherPoolUses) leave() {
	u.second.leave(u.pools[2], u.pools[3])
	u.first.leave(u.pools[0], u.pools[1])
}

func (c *collective) hasEntered(p *Pool) bool { return p == c.send.pool || p == c.recv.pool }

// SendTagged sends count elements to a peer, which must call RecvTagged with the same tag, from 0
// to MaxTag.
func (g *Group) SendTagged(
	ctx context.Context, send Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer, tag: tag,
	})
}

// RecvTagged receives count elements from a peer, or from any rank if peer is AnySource. Receives
// with the same tag match messages in the order of the calls. A receive from AnySource accepts the
// message that arrives first, and later receives with the same tag wait for it. To learn the
// sender, set Call.Arrived and use Interop.Do.
func (g *Group) RecvTagged(
	ctx context.Context, recv Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer, tag: tag,
	})
}

// AllToAllV sends a part of send to each rank and stores a part from each rank in recv; splits
// contains the sizes, and is copied. The parts of recv must not overlap. send and recv may be the
// same memory. AllToAllV does not match AllToAll on other ranks. If a rank sends a different number
// of elements than the peer expects, no buffer is written, and all ranks return a MessageError with
// each such pair of ranks. Below CheckEvery, only the ranks of these pairs return it.
func (g *Group) AllToAllV(
	ctx context.Context, send, recv Memory, splits Splits, t DataType, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.AllToAllV, send: send, recv: recv, dataType: t, splits: &splits,
	})
}

// AllGatherV gathers counts[r] elements of each rank r's send into every rank's recv. Every rank
// must pass the same counts, which may be 0 and are copied. AllGatherV does not match AllGather on
// other ranks. On the direct path, large parts are faster if recv is registered with the group.
func (g *Group) AllGatherV(
	ctx context.Context, send, recv Memory, counts []int64, t DataType, s *Stream,
) error {
	splits := &Splits{RecvCounts: counts}
	return g.run(ctx, s, &collective{
		operation: driver.AllGatherV, send: send, recv: recv, dataType: t, splits: splits,
		count: splits.CountOf(driver.AllGatherV, g.rank),
	})
}

// ReduceScatterV combines every rank's send, which has counts[r] elements for each rank r, and
// stores this rank's part in recv. Counts are as in AllGatherV. On the direct path, large parts are
// faster if send is registered.
func (g *Group) ReduceScatterV(
	ctx context.Context, send, recv Memory, counts []int64, t DataType, op ReduceOp, s *Stream,
) error {
	splits := &Splits{SendCounts: counts}
	return g.run(ctx, s, &collective{
		operation: driver.ReduceScatterV, send: send, recv: recv, dataType: t, reduceOp: op,
		splits: splits, count: splits.CountOf(driver.ReduceScatterV, g.rank),
	})
}

// Gather gathers count elements of every rank's send into the root's recv. Other ranks need no
// recv.
func (g *Group) Gather(
	ctx context.Context, send, recv Memory, count int64, t DataType, root int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Gather, send: send, recv: recv, count: count, dataType: t, root: root,
	})
}

// Scatter stores count elements of the root's send in each rank's recv. Other ranks need no send.
func (g *Group) Scatter(
	ctx context.Context, send, recv Memory, count int64, t DataType, root int, s *Stream,
) error {
	return g.run(ctx, s, &collective{
		operation: driver.Scatter, send: send, recv: recv, count: count, dataType: t, root: root,
	})
}

// AllReduceRMSNorm combines an all-reduce, an addition to the residual, a norm and, if a.Quant is
// set, a quantization to 8 bits. For every element, it computes
//
//	y         = round(the sum of all ranks' Input)      as AllReduce computes it
//	Residual  = round(y + Residual)
//	Output    = round(Residual * (Weight + WeightBias) / sqrt(mean(Residual²) + Epsilon))
//	Quantized = e4m3(Output / scale)
//
// where round rounds to a.Type. Intermediate results are float32, and the mean is taken over a row.
// Package driver/formula defines the results bit by bit; they are the same on every rank, in every
// run and for every number of rows.
//
// On GPUs, AllReduceRMSNorm requires the direct path; otherwise, all ranks return an ErrUnsupported
// with the reason. After a fault, all outputs are undefined.
func (g *Group) AllReduceRMSNorm(ctx context.Context, a NormArgs, s *Stream) error {
	return runNorm(ctx, g, driver.AllReduceRMSNorm, a, s, PathDefault, 0, false)
}

// ReduceScatterRMSNorm is AllReduceRMSNorm for sequence parallelism: each rank normalizes its own
// part of the rows. The Input has the rows of each rank in the order of ranks. The Residual and the
// outputs have only this rank's rows, with the bits that AllReduceRMSNorm computes for them.
// Callers pad the Input if the ranks do not divide its rows evenly. AllGather, or AllGatherV in a
// list with the scales, returns all rows to each rank.
func (g *Group) ReduceScatterRMSNorm(ctx context.Context, a NormArgs, s *Stream) error {
	return runNorm(ctx, g, driver.ReduceScatterRMSNorm, a, s, PathDefault, 0, false)
}

// Dispatch sends each token's row, ids, weights and scales once to every rank that owns one of its
// experts. Ids of experts on other ranks arrive as -1. Ids other than -1 that belong to no expert
// are counted and otherwise ignored. The numbers of rows stay on the device, so each replay of a
// captured call may have other ids.
//
// On GPUs, Dispatch requires the direct path. If MaxTokens is above 512 or Recv has more than about
// 14 MiB, Recv must be at the same place in memory registered with the group on all ranks.
// Otherwise, all ranks return an ErrUnsupported with the reason. If Recv is too small, Dispatch
// returns an ErrOutOfRange. After a fault on a GPU, each id is valid or -1.
func (g *Group) Dispatch(ctx context.Context, a RouteArgs, s *Stream) error {
	return runRoute(ctx, g, driver.Dispatch, a, s, PathDefault, 0, false)
}

// Combine returns rows to the ranks from which Dispatch received them, and adds up the rows of each
// token in the order of ranks. Sums are computed in float32 and rounded once, so they depend only
// on the token's rows. The row of a token without experts is 0. Each rank must pass the IDs and the
// Routing of its Dispatch, and the computed rows at the places of the received rows; the other
// places have no effect. On GPUs, the requirements of Dispatch for Recv apply to Send.
func (g *Group) Combine(ctx context.Context, a RouteArgs, s *Stream) error {
	return runRoute(ctx, g, driver.Combine, a, s, PathDefault, 0, false)
}

// Permute reorders what Dispatch has written to Dispatched, and writes it to Permuted. There, the
// rows of each of this rank's experts are adjacent, as grouped matrix products need them. A row
// with several experts is copied for each. The rows of an expert are in the order of the ranks,
// then of the places in Dispatched, and then of the ids. The numbers of rows stay on the device.
//
// Permute uses only the memory of this rank and does not wait for others, so ranks need not call it
// the same number of times. If Permuted is too small for the most rows that any ids could
// need, it returns an ErrOutOfRange.
func (g *Group) Permute(a PermuteArgs, s *Stream) error {
	return permute(g, permuting, &a, s)
}

// Unpermute multiplies each row of Computed that belongs to an expert by the row's weight, and
// writes the sum of the products of each dispatched row to its place in Returned, from which
// Combine sends it back. Products are added in the order of the ids, in float32, and the sum is
// rounded once. Other places are not written. Permuted is the output of Permute with the same
// Routing and Align. Like Permute, Unpermute uses only the memory of this rank.
func (g *Group) Unpermute(a PermuteArgs, s *Stream) error {
	return permute(g, unpermuting, &a, s)
}

// launchOn queues a plan, or records it in another library's capture. wait means that the stream is
// not being captured and that the caller calls Synchronize next.
func (g *Group) launchOn(s *Stream, planned *collective, wait bool) error {
	if wait {
		if inline, ok := g.comm.(driver.InlineLauncher); ok {
			return inline.LaunchInline(s.queue, planned.plan)
		}

		return g.comm.Launch(s.queue, planned.plan)
	}

	if s.adopted == nil || s.capturing.Load() || !s.isCapturing() {
		return g.comm.Launch(s.queue, planned.plan)
	}

	recorder, ok := g.comm.(driver.Recorder)
	if !ok {
		return fmt.Errorf("%v in a capture of another library: %w", planned.operation, ErrUnsupported)
	}

	err := g.rt.captures.beginAdopted(
		fmt.Sprintf("%v in a capture of another library", planned.operation), s)
	if err != nil {
		return err
	}

	return recorder.Record(s.queue, planned.plan)
}

// Explain returns the path that a collective on these buffers would take now, and the reason. It
// assumes Sum for reductions and parts of the same size. It does not communicate.
func (g *Group) Explain(
	op Operation, send, recv Memory, count int64, t DataType,
) (Explanation, error) {
	e, err := g.calls.explain(op, send, recv, count, t)
	if err != nil {
		return Explanation{}, fmt.Errorf("explaining %v: %w", op, err)
	}

	return e, nil
}
