package workload

import (
	"context"

	"symmem"
)

// Place cuts what a rank sends and receives out of memory. Where both are the same memory the call
// is in place.
func (p *Pattern) Place(rank int, from, to symmem.Memory) (send, recv symmem.Memory, err error) {
	size := int64(p.DataType.Size())
	sent, received := p.Spans()
	sendAt, recvAt := int64(0), int64(0)
	switch part := int64(rank) * p.Count * size; {
	case from != to:
	case sent < received:
		sendAt = part
	case sent > received:
		recvAt = part
	}
	if send, err = from.Slice(sendAt, sent*size); err == nil {
		recv, err = to.Slice(recvAt, received*size)
	}
	return send, recv, err
}

// Launch makes the call on a stream. OpSend is a ring: a message to the next rank, and one from the
// rank before, which is received on a stream of its own. Where that is the same one ranks take
// turns in which comes first: NCCL runs the work of one communicator in the order of calls, so that
// half a ring that waits on another stream would wait forever, and a graph has one stream alone.
func (p *Pattern) Launch(
	ctx context.Context, g *symmem.Group, send, recv symmem.Memory, s, receiving *symmem.Stream,
) error {
	n, t := p.Count, p.DataType
	switch p.Operation {
	case symmem.OpAllReduce:
		return g.AllReduce(ctx, send, recv, n, t, p.ReduceOp, s)
	case symmem.OpAllGather:
		return g.AllGather(ctx, send, recv, n, t, s)
	case symmem.OpReduceScatter:
		return g.ReduceScatter(ctx, send, recv, n, t, p.ReduceOp, s)
	case symmem.OpBroadcast:
		return g.Broadcast(ctx, send, recv, n, t, p.Root, s)
	case symmem.OpReduce:
		return g.Reduce(ctx, send, recv, n, t, p.ReduceOp, p.Root, s)
	case symmem.OpAllToAll:
		return g.AllToAll(ctx, send, recv, n, t, s)
	case symmem.OpBarrier:
		return g.Barrier(ctx, s)
	default:
	}
	first := func() error { return g.Send(ctx, send, n, t, (g.Rank()+1)%g.Size(), s) }
	second := func() error {
		return g.Recv(ctx, recv, n, t, (g.Rank()+g.Size()-1)%g.Size(), receiving)
	}
	if s == receiving && g.Rank()%2 == 1 {
		first, second = second, first
	}
	if err := first(); err != nil {
		return err
	}
	return second()
}
