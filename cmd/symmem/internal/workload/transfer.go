package workload

import (
	"context"

	"symmem"
	"symmem/driver"
)

// Transfer holds the pattern of a call and this rank's send and receive buffers.
type Transfer struct {
	Pattern
	// Group is nil on ranks outside the group. These ranks still fill and read the memory, because
	// pools must record the same uses on all ranks.
	Group      *symmem.Group
	Send, Recv symmem.Memory // set by Place
	Got        []byte        // a copy of Recv, made by Read
}

// ownRank returns this rank's number in the group, or 0 on ranks outside the group.
func (t *Transfer) ownRank() int {
	if t.Group == nil {
		return 0
	}

	return t.Group.Rank()
}

// Place sets Send and Recv to the ranges of src and dst that the call uses. If src and dst are the
// same memory, the call is in place. If only one of the buffers has a part for each rank, as in an
// AllGather, the other buffer is then this rank's part of it.
func (t *Transfer) Place(src, dst symmem.Memory) error {
	elementBytes := int64(t.DataType.Size())
	sendCount, recvCount := t.SendRecvCounts(t.ownRank())
	ownPartOffset := t.partOffset(t.ownRank()) * elementBytes
	sendOffset, recvOffset := int64(0), int64(0)
	sendExtent, recvExtent := t.Operation.Extents()
	isInPlace := src == dst
	if isInPlace && sendExtent != recvExtent {
		if sendExtent == driver.OnePart {
			sendOffset = ownPartOffset
		} else if recvExtent == driver.OnePart {
			recvOffset = ownPartOffset
		}
	}

	var err error
	t.Send, err = src.Slice(sendOffset, sendCount*elementBytes)
	if err != nil {
		return err
	}

	t.Recv, err = dst.Slice(recvOffset, recvCount*elementBytes)
	return err
}

// Junk is the value of all bytes of the output before a call.
const Junk = 0xa5

// Fill queues a write of Junk to the output, and a copy of the data to the input.
func (t *Transfer) Fill(s *symmem.Stream) error {
	// Before the input, because the output may overlap it in place.
	if err := s.Fill(t.Recv, Junk); err != nil {
		return err
	}

	data := t.Input(t.ownRank())
	return s.Copy(t.Send, symmem.Host(data))
}

// Read queues a copy of the output to Got.
func (t *Transfer) Read(s *symmem.Stream) error {
	t.Got = make([]byte, t.Recv.Bytes())
	return s.Copy(symmem.Host(t.Got), t.Recv)
}

// Launch makes the call on s. This rank must be a member of the group. For OpSend, each rank sends
// to the next rank on s, and receives from the previous rank on recvStream. Other operations ignore
// recvStream. In a graph, both streams must be the same.
func (t *Transfer) Launch(ctx context.Context, s, recvStream *symmem.Stream) error {
	g, send, recv, count, dataType := t.Group, t.Send, t.Recv, t.Count, t.DataType
	switch t.Operation {
	case symmem.OpAllReduce:
		return g.AllReduce(ctx, send, recv, count, dataType, t.ReduceOp, s)
	case symmem.OpAllGather:
		return g.AllGather(ctx, send, recv, count, dataType, s)
	case symmem.OpReduceScatter:
		return g.ReduceScatter(ctx, send, recv, count, dataType, t.ReduceOp, s)
	case symmem.OpBroadcast:
		return g.Broadcast(ctx, send, recv, count, dataType, t.Root, s)
	case symmem.OpReduce:
		return g.Reduce(ctx, send, recv, count, dataType, t.ReduceOp, t.Root, s)
	case symmem.OpAllToAll:
		return g.AllToAll(ctx, send, recv, count, dataType, s)
	case symmem.OpAllGatherV:
		return g.AllGatherV(ctx, send, recv, t.PartCounts(), dataType, s)
	case symmem.OpReduceScatterV:
		return g.ReduceScatterV(ctx, send, recv, t.PartCounts(), dataType, t.ReduceOp, s)
	case symmem.OpGather:
		return g.Gather(ctx, send, recv, count, dataType, t.Root, s)
	case symmem.OpScatter:
		return g.Scatter(ctx, send, recv, count, dataType, t.Root, s)
	case symmem.OpBarrier:
		return g.Barrier(ctx, s)
	default: // OpSend
		return t.sendAndRecv(ctx, s, recvStream)
	}
}

// sendAndRecv makes the two calls of OpSend.
func (t *Transfer) sendAndRecv(ctx context.Context, s, recvStream *symmem.Stream) error {
	g := t.Group
	next := (g.Rank() + 1) % g.Size()
	previous := (g.Rank() + g.Size() - 1) % g.Size()
	first := func() error { return g.Send(ctx, t.Send, t.Count, t.DataType, next, s) }
	second := func() error { return g.Recv(ctx, t.Recv, t.Count, t.DataType, previous, recvStream) }
	if s == recvStream && g.Rank()%2 == 1 {
		// NCCL executes the calls on a stream in order. If all ranks sent first, none would receive.
		first, second = second, first
	}

	if err := first(); err != nil {
		return err
	}

	return second()
}
