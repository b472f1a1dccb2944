package workload

import (
	"context"

	"symmem"
)

// Call is a call of this rank, with the memory to send from and to receive into.
type Call struct {
	Pattern
	// Group is nil on ranks that are not members. They place, fill and read the same memory, so
	// that their pools see the same uses.
	Group      *symmem.Group
	Send, Recv symmem.Memory
	// Got is the content of Recv that Read has copied.
	Got []byte
}

// rank returns this rank's number in the group, or 0 if it is not a member.
func (c *Call) rank() int {
	if c.Group == nil {
		return 0
	}
	return c.Group.Rank()
}

// Place sets the buffers to the required parts of memory. If from and to are the same memory the
// call is in place.
func (c *Call) Place(from, to symmem.Memory) (err error) {
	size := int64(c.DataType.Size())
	sent, received := c.Spans()
	sendAt, recvAt := int64(0), int64(0)
	switch part := int64(c.rank()) * c.Count * size; {
	case from != to:
	case sent < received:
		sendAt = part
	case sent > received:
		recvAt = part
	}
	if c.Send, err = from.Slice(sendAt, sent*size); err == nil {
		c.Recv, err = to.Slice(recvAt, received*size)
	}
	return err
}

// Junk fills memory before a call.
const Junk = 0xa5

// Fill queues writes of junk to the output and of the input.
func (c *Call) Fill(s *symmem.Stream) error {
	if err := s.Fill(c.Recv, Junk); err != nil {
		return err
	}
	return s.Copy(c.Send, symmem.Host(c.Input(c.rank())))
}

// Read queues a copy of the output.
func (c *Call) Read(s *symmem.Stream) error {
	c.Got = make([]byte, c.Recv.Bytes())
	return s.Copy(symmem.Host(c.Got), c.Recv)
}

// Launch makes the call on a stream, on a member. OpSend is a ring: a message to the next rank, and
// one from the previous rank, which is received on a second stream. If both streams are the same,
// as in a graph, even and odd ranks send and receive in opposite orders. NCCL executes the work of
// one communicator in the order of calls, so a half ring that waits for another stream would wait
// forever.
func (c *Call) Launch(ctx context.Context, s, receiving *symmem.Stream) error {
	g, send, recv, n, t := c.Group, c.Send, c.Recv, c.Count, c.DataType
	switch c.Operation {
	case symmem.OpAllReduce:
		return g.AllReduce(ctx, send, recv, n, t, c.ReduceOp, s)
	case symmem.OpAllGather:
		return g.AllGather(ctx, send, recv, n, t, s)
	case symmem.OpReduceScatter:
		return g.ReduceScatter(ctx, send, recv, n, t, c.ReduceOp, s)
	case symmem.OpBroadcast:
		return g.Broadcast(ctx, send, recv, n, t, c.Root, s)
	case symmem.OpReduce:
		return g.Reduce(ctx, send, recv, n, t, c.ReduceOp, c.Root, s)
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
