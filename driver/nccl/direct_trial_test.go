package nccl

import (
	"fmt"

	"symmem/driver"
)

// trial is a direct collective call with the same arguments on all ranks. Each rank has an array of
// outputs and an array of inputs, a repeated tile of random elements. For example, an AllGather
// with count 3, sendOffset 10 and recvOffset 20 reads inputs[10:13] on each rank. It writes the
// elements of rank 0 to outputs[20:23], and those of rank 1 to outputs[23:26].
type trial struct {
	layout
	operation  driver.Operation
	op         driver.ReduceOp
	root       int // index in the group
	count      int64
	sendOffset int64  // in the inputs; equal to recvOffset if in place
	recvOffset int64  // in the outputs
	digest     uint64 // unique to the call
}

// layout is common to all trials whose outputs share an array.
type layout struct {
	dataType driver.DataType
	inPlace  bool
	noWindow bool // buffers are outside windows, at different offsets on each rank
}

func (t *trial) String() string {
	return fmt.Sprintf("%v %v of %d %v, root %d, in place: %v, no window: %v, offsets %d and %d",
		t.operation, t.op, t.count, t.dataType, t.root, t.inPlace, t.noWindow, t.sendOffset, t.recvOffset)
}

// spans returns the sizes of the send and receive buffers in elements.
func (t *trial) spans(ranks int) (send, recv int64) {
	const anyRank = 0
	// Spans returns bytes, so an element of one byte makes it count elements.
	call := driver.Call{Operation: t.operation, Count: t.count, DataType: driver.Uint8}
	return call.Spans(ranks, anyRank)
}

// extent returns the size of the used part of the outputs in elements.
func (t *trial) extent(ranks int) int64 {
	send, recv := t.spans(ranks)
	if t.inPlace {
		return max(send, recv)
	}

	return recv
}

// partOffset returns where a rank's part begins in a buffer that has a part for each rank.
func (t *trial) partOffset(rank int) int64 { return int64(rank) * t.count }

// piece is a range of the expected output. Its elements repeat a tile, starting at tileOffset.
type piece struct {
	offset     int64 // in a rank's outputs
	count      int64
	tile       []byte
	tileOffset int64
}

type sources struct {
	inputs  [][]byte // tiles, by rank
	reduced []byte   // reduction of these tiles
}

// pieces returns a rank's expected output. Elements outside the pieces must not change.
func (t *trial) pieces(rank int, s *sources) []piece {
	output := piece{offset: t.recvOffset, count: t.count, tileOffset: t.sendOffset}
	switch t.operation {
	case driver.AllReduce:
		output.tile = s.reduced
	case driver.Reduce:
		if rank != t.root {
			return nil
		}

		output.tile = s.reduced
	case driver.ReduceScatter:
		output.tile = s.reduced
		output.tileOffset += t.partOffset(rank)
		if t.inPlace {
			output.offset += t.partOffset(rank)
		}
	case driver.Broadcast:
		output.tile = s.inputs[t.root]
	default: // AllGather, AllToAll
		return t.piecesFromAll(rank, s)
	}

	return []piece{output}
}

// piecesFromAll returns the expected output of an AllGather or AllToAll: a piece from each rank.
func (t *trial) piecesFromAll(rank int, s *sources) []piece {
	var all []piece
	for source, input := range s.inputs {
		all = append(all, piece{
			offset: t.recvOffset + t.partOffset(source), count: t.count,
			tile: input, tileOffset: t.sendOffset + t.partOffset(t.sentPart(source, rank)),
		})
	}

	return all
}

// sentPart returns which part of its send buffer the source sends to a rank.
func (t *trial) sentPart(source, rank int) int {
	switch {
	case t.operation == driver.AllToAll:
		return rank
	case t.inPlace: // an AllGather from the outputs
		return source
	default: // an AllGather from the inputs, which have one part
		return 0
	}
}

// field is an array of inputs or outputs in a region.
type field struct {
	memory *region
	base   int64 // byte offset of the first element, at least leadBytes
}

// leadBytes is the size of the guard area before the first array.
const leadBytes = 256

func (f field) at(element int64, dataType driver.DataType) uintptr {
	return f.memory.segment.Address() + uintptr(f.base+element*int64(dataType.Size()))
}

func (t *trial) call(rank int, inputs, outputs field) driver.Call {
	call := driver.Call{
		Operation: t.operation, DataType: t.dataType, ReduceOp: t.op, Root: t.root, Count: t.count,
		Path: driver.PathDirect, Digest: t.digest,
		Send: inputs.at(t.sendOffset, t.dataType), Recv: outputs.at(t.recvOffset, t.dataType),
	}
	if t.inPlace {
		inputs = outputs
		call.Send = call.Recv
		partAddress := outputs.at(t.recvOffset+t.partOffset(rank), t.dataType)
		switch t.operation {
		case driver.AllGather:
			call.Send = partAddress
		case driver.ReduceScatter:
			call.Recv = partAddress
		default: // Send and Recv are equal
		}
	}

	if !t.noWindow && t.operation != driver.Barrier {
		call.SendWindow = inputs.memory.window
		call.RecvWindow = outputs.memory.window
	}

	return call
}
