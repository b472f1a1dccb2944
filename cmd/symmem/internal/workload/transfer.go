package workload

import (
	"bytes"
	"context"
	"math"

	"symmem"
	"symmem/driver"
)

// Transfer runs a collective, or a Send with a Recv, on this rank. Callers use Place, Fill, Launch
// and Read in this order, and compare Got with Output. Fill, Launch and Read only queue work.
//
// Ranks outside the group skip only Launch, because pools must record the same uses of memory on
// all ranks.
type Transfer struct {
	Pattern                  // defines the input and the right output
	Group      *symmem.Group // nil on ranks outside the group
	Send, Recv symmem.Memory // set by Place
	Got        []byte        // set by Read; valid after the next Synchronize of the stream
}

// ownRank returns this rank's number in the group, or 0 outside the group.
func (t *Transfer) ownRank() int {
	if t.Group == nil {
		return 0
	}

	return t.Group.Rank()
}

// Place sets Send and Recv to the ranges of src and dst that the operation uses. If src == dst, the
// operation is in place.
func (t *Transfer) Place(src, dst symmem.Memory) error {
	sendOffset, recvOffset := int64(0), int64(0)
	isInPlace := src == dst
	if isInPlace {
		sendOffset, recvOffset = t.inPlaceOffsets()
	}

	var err error
	elementBytes := int64(t.DataType.Size())
	sendCount, recvCount := t.SendRecvCounts(t.ownRank())
	t.Send, err = src.Slice(sendOffset*elementBytes, sendCount*elementBytes)
	if err != nil {
		return err
	}

	t.Recv, err = dst.Slice(recvOffset*elementBytes, recvCount*elementBytes)
	return err
}

// inPlaceOffsets returns the offsets of Send and Recv in their common memory, in elements. In an
// AllGather, for example, Send is this rank's part of Recv.
func (t *Transfer) inPlaceOffsets() (send, recv int64) {
	ownPart := t.partOffset(t.ownRank())
	sendExtent, recvExtent := t.Operation.Extents()
	sendsOnePart := sendExtent == driver.OnePart
	recvsOnePart := recvExtent == driver.OnePart
	switch {
	case sendsOnePart == recvsOnePart:
		return 0, 0
	case sendsOnePart:
		return ownPart, 0
	default:
		return 0, ownPart
	}
}

// Junk is the value of each byte of Recv before Launch, so that Compare finds elements that the
// operation does not write.
const Junk = 0xa5

// Fill queues writes of Junk to Recv and then of the input to Send, which may overlap Recv.
func (t *Transfer) Fill(s *symmem.Stream) error {
	if err := s.Fill(t.Recv, Junk); err != nil {
		return err
	}

	input := t.Input(t.ownRank())
	return s.Copy(t.Send, symmem.Host(input))
}

// Read queues a copy of Recv to Got.
func (t *Transfer) Read(s *symmem.Stream) error {
	t.Got = make([]byte, t.Recv.Bytes())
	return s.Copy(symmem.Host(t.Got), t.Recv)
}

// Launch queues the operation on s. This rank must be a member of the group.
//
// OpSend stands for a Send to the next rank on s, and a Recv from the previous rank on recvStream.
// In a capture, both streams must be the same. Other operations ignore recvStream.
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

func (t *Transfer) sendAndRecv(ctx context.Context, s, recvStream *symmem.Stream) error {
	g := t.Group
	next := (g.Rank() + 1) % g.Size()
	previous := (g.Rank() + g.Size() - 1) % g.Size()
	send := func() error { return g.Send(ctx, t.Send, t.Count, t.DataType, next, s) }
	recv := func() error { return g.Recv(ctx, t.Recv, t.Count, t.DataType, previous, recvStream) }
	first, second := send, recv
	// NCCL executes the calls on one stream in order. If all ranks sent first, they would deadlock.
	isOdd := g.Rank()%2 == 1
	if s == recvStream && isOdd {
		first, second = recv, send
	}

	if err := first(); err != nil {
		return err
	}

	return second()
}

// Difference describes the wrong elements of a buffer. All fields are 0 if no element is wrong.
type Difference struct {
	Wrong     int64   // number of wrong elements
	First     int64   // index of the first wrong element
	Got, Want float64 // actual and right value of the first wrong element
}

// Compare compares the output of a call with the right one.
func (p *Pattern) Compare(got, want []byte) Difference {
	return compare(got, want, p.DataType, p.Tolerance())
}

// compare compares elements of type t. got and want must have the same length. tolerance is the
// permitted relative error.
func compare(got, want []byte, t symmem.DataType, tolerance float64) Difference {
	var d Difference
	if bytes.Equal(got, want) { // fast path
		return d
	}

	size := t.Size()
	for offset := 0; offset < len(want); offset += size {
		end := offset + size
		if bytes.Equal(got[offset:end], want[offset:end]) {
			continue
		}

		gotValue := Decode(got[offset:], t)
		wantValue := Decode(want[offset:], t)
		maxError := tolerance * math.Abs(wantValue)
		isTolerable := math.Abs(gotValue-wantValue) <= maxError // false for NaN
		if isTolerable {
			continue
		}

		isFirst := d.Wrong == 0
		if isFirst {
			d.First = int64(offset / size)
			d.Got = gotValue
			d.Want = wantValue
		}

		d.Wrong++
	}

	return d
}
