package workload

import (
	"context"

	"symmem"
	"symmem/driver"
)

// Transfer holds the pattern of a call and this rank's send and receive buffers.
type Transfer struct {
	Pattern
	// Group is nil on ranks that are not members. Such ranks still place, fill and read the memory,
	// so that the pools of all ranks record the same uses.
	Group      *symmem.Group
	Send, Recv symmem.Memory
	// Got is a copy of Recv, made by Read.
	Got []byte
}

// rank returns this rank's number in the group, or 0 if it is not a member.
func (t *Transfer) rank() int {
	if t.Group == nil {
		return 0
	}
	return t.Group.Rank()
}

// Place sets Send and Recv to the parts of src and dst that the call uses. The call is in place if
// src and dst are the same memory.
func (t *Transfer) Place(src, dst symmem.Memory) (err error) {
	size := int64(t.DataType.Size())
	sent, received := t.Spans(t.rank())
	sendOffset, recvOffset := int64(0), int64(0)
	part := t.offset(t.rank()) * size
	switch send, recv := t.Operation.Extents(); {
	case src != dst || send == recv:
	case send == driver.OnePart:
		sendOffset = part
	case recv == driver.OnePart:
		recvOffset = part
	}
	if t.Send, err = src.Slice(sendOffset, sent*size); err == nil {
		t.Recv, err = dst.Slice(recvOffset, received*size)
	}
	return err
}

// Junk is the value of all bytes of the output before a call.
const Junk = 0xa5

// Fill queues work that fills the output with junk and writes the input.
func (t *Transfer) Fill(s *symmem.Stream) error {
	if err := s.Fill(t.Recv, Junk); err != nil {
		return err
	}
	return s.Copy(t.Send, symmem.Host(t.Input(t.rank())))
}

// Read queues a copy of the output.
func (t *Transfer) Read(s *symmem.Stream) error {
	t.Got = make([]byte, t.Recv.Bytes())
	return s.Copy(symmem.Host(t.Got), t.Recv)
}

// Launch makes the call on a stream. This rank must be a member of the group. OpSend stands for a
// ring, in which each rank sends a message to the next rank and, on recvStream, receives one from
// the previous rank. In a graph, s and recvStream must be the same stream, on which even ranks
// send first and odd ranks receive first: NCCL executes the work of a communicator in the order of
// calls, so a send that waits for a receive on another stream would deadlock.
func (t *Transfer) Launch(ctx context.Context, s, recvStream *symmem.Stream) error {
	g, send, recv, n, e := t.Group, t.Send, t.Recv, t.Count, t.DataType
	switch t.Operation {
	case symmem.OpAllReduce:
		return g.AllReduce(ctx, send, recv, n, e, t.ReduceOp, s)
	case symmem.OpAllGather:
		return g.AllGather(ctx, send, recv, n, e, s)
	case symmem.OpReduceScatter:
		return g.ReduceScatter(ctx, send, recv, n, e, t.ReduceOp, s)
	case symmem.OpBroadcast:
		return g.Broadcast(ctx, send, recv, n, e, t.Root, s)
	case symmem.OpReduce:
		return g.Reduce(ctx, send, recv, n, e, t.ReduceOp, t.Root, s)
	case symmem.OpAllToAll:
		return g.AllToAll(ctx, send, recv, n, e, s)
	case symmem.OpAllGatherV:
		return g.AllGatherV(ctx, send, recv, t.Counts(), e, s)
	case symmem.OpReduceScatterV:
		return g.ReduceScatterV(ctx, send, recv, t.Counts(), e, t.ReduceOp, s)
	case symmem.OpGather:
		return g.Gather(ctx, send, recv, n, e, t.Root, s)
	case symmem.OpScatter:
		return g.Scatter(ctx, send, recv, n, e, t.Root, s)
	case symmem.OpBarrier:
		return g.Barrier(ctx, s)
	default:
	}
	first := func() error { return g.Send(ctx, send, n, e, (g.Rank()+1)%g.Size(), s) }
	second := func() error {
		return g.Recv(ctx, recv, n, e, (g.Rank()+g.Size()-1)%g.Size(), recvStream)
	}
	if s == recvStream && g.Rank()%2 == 1 {
		first, second = second, first
	}
	if err := first(); err != nil {
		return err
	}
	return second()
}
