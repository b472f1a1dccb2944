package random

import (
	"context"
	"fmt"

	"symmem"
	"symmem/internal/workload"
)

// exchange is one checked call: what this rank sends and receives, and where.
type exchange struct {
	workload.Pattern
	// group is nil on ranks that are no members: they fill and read the same memory, so that their
	// pools see the same uses.
	group *symmem.Group
	// The input is written on stream from, the call is on stream on.
	from, on   *symmem.Stream
	send, recv symmem.Memory
	// sender is the buffer that send is a part of.
	sender    symmem.Buffer
	got, want []byte
}

// junk is what memory is spoiled with before a call.
const junk = 0xa5

// me is this rank's number in the group, or 0 if it is no member.
func (e *exchange) me() int {
	if e.group == nil {
		return 0
	}
	return e.group.Rank()
}

// place cuts the memory of the call out of two buffers, or of one where it is in place.
func (e *exchange) place(send, recv symmem.Memory) (err error) {
	size := int64(e.DataType.Size())
	sent, received := e.Spans()
	part := int64(e.me()) * e.Count * size
	if send != recv {
		if e.send, err = send.Slice(0, sent*size); err == nil {
			e.recv, err = recv.Slice(0, received*size)
		}
		return err
	}
	sendAt, recvAt := int64(0), int64(0)
	switch e.Operation {
	case symmem.OpAllGather:
		sendAt = part
	case symmem.OpReduceScatter:
		recvAt = part
	default:
	}
	if e.send, err = send.Slice(sendAt, sent*size); err == nil {
		e.recv, err = send.Slice(recvAt, received*size)
	}
	return err
}

// fill spoils the output and writes the input.
func (e *exchange) fill() error {
	if err := e.from.Fill(e.recv, junk); err != nil {
		return err
	}
	return e.from.Copy(e.send, symmem.Host(e.Input(e.me())))
}

// launch makes the call, where this rank is a member.
func (e *exchange) launch(ctx context.Context) error {
	if e.group == nil || e.Operation == symmem.OpSend && e.Ranks == 1 {
		return nil
	}
	g, s, n, t := e.group, e.on, e.Count, e.DataType
	e.want = e.Output(g.Rank())
	switch e.Operation {
	case symmem.OpAllReduce:
		return g.AllReduce(ctx, e.send, e.recv, n, t, e.ReduceOp, s)
	case symmem.OpAllGather:
		return g.AllGather(ctx, e.send, e.recv, n, t, s)
	case symmem.OpReduceScatter:
		return g.ReduceScatter(ctx, e.send, e.recv, n, t, e.ReduceOp, s)
	case symmem.OpBroadcast:
		return g.Broadcast(ctx, e.send, e.recv, n, t, e.Root, s)
	case symmem.OpReduce:
		return g.Reduce(ctx, e.send, e.recv, n, t, e.ReduceOp, e.Root, s)
	case symmem.OpAllToAll:
		return g.AllToAll(ctx, e.send, e.recv, n, t, s)
	default:
		return e.ring(ctx)
	}
}

// ring sends to the next rank and receives from the one before. Ranks take turns in which comes
// first: the calls of a group run in their order.
func (e *exchange) ring(ctx context.Context) error {
	rank, g := e.group.Rank(), e.group
	send := func() error {
		return g.Send(ctx, e.send, e.Count, e.DataType, (rank+1)%e.Ranks, e.on)
	}
	recv := func() error {
		return g.Recv(ctx, e.recv, e.Count, e.DataType, (rank+e.Ranks-1)%e.Ranks, e.on)
	}
	if rank%2 == 1 {
		send, recv = recv, send
	}
	if err := send(); err != nil {
		return err
	}
	return recv()
}

// read queues the copy of the output.
func (e *exchange) read() error {
	e.got = make([]byte, e.recv.Bytes())
	return e.on.Copy(symmem.Host(e.got), e.recv)
}

// describe names the call for people.
func (e *exchange) describe() string {
	name := e.Operation.String()
	if e.Operation == symmem.OpSend {
		name = "Send and Recv"
	}
	text := fmt.Sprintf("%s of %d %v", name, e.Count, e.DataType)
	if e.Reduces() {
		text += " " + e.ReduceOp.String()
	}
	if e.group != nil {
		text += " in group " + e.group.ID()
	}
	if e.send == e.recv {
		text += " in place"
	}
	return text
}
