package symmem

import (
	"context"
	"errors"

	"symmem/driver"
)

// DataType is the type of the elements of a collective.
type DataType = driver.DataType

// The data types.
const (
	Float64  = driver.Float64
	Float32  = driver.Float32
	Float16  = driver.Float16
	BFloat16 = driver.BFloat16
	Int8     = driver.Int8
	Int32    = driver.Int32
	Int64    = driver.Int64
	Uint8    = driver.Uint8
)

// ReduceOp is what a reduction applies to elements. See driver.ReduceOp for rounding and order.
type ReduceOp = driver.ReduceOp

// The reduce operations.
const (
	Sum  = driver.Sum
	Prod = driver.Prod
	Min  = driver.Min
	Max  = driver.Max
	Avg  = driver.Avg
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

// run launches a collective. Where the group's fault is why it cannot, the stream fails: what is
// queued behind may use the result.
func (g *Group) run(ctx context.Context, s *Stream, r *request, e *extras) error {
	if s == nil {
		s = g.rt.stream
	}
	if s.rt != g.rt {
		return invalid("%v on group %s: the stream is of another runtime", r.operation, g.id)
	}
	p, err := g.plan(ctx, r, e, s)
	if err != nil {
		if cause := g.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
			s.queue.Fail(cause)
		}
		return err
	}
	if s.capturing.Load() ||
		r.send.extent.stream() != s.number || r.recv.extent.stream() != s.number {
		if err := s.uses(r.send, r.recv); err != nil {
			return err
		}
	}
	if r.operation == driver.AllReduceRMSNorm {
		if err := s.uses(e.norm.residual, e.norm.weight); err != nil {
			return err
		}
	}
	if s.adopted != nil {
		err = g.launchAdopted(s, p)
	} else {
		err = g.comm.Launch(s.queue, p.plan)
	}
	if err != nil {
		return g.settle(err)
	}
	return nil
}
