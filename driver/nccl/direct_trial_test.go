package nccl

import (
	"fmt"

	"symmem/driver"
)

// trial is a direct collective call with the same arguments on all ranks. Each rank has an array of
// inputs, which repeats a tile of random elements, and an array of outputs. For example, an
// AllGather with count 3, sendOffset 10 and recvOffset 20 reads inputs[10:13] on each rank, and
// writes rank 0's elements to outputs[20:23] and rank 1's to outputs[23:26].
type trial struct {
	layout
	operation  driver.Operation
	op         driver.ReduceOp
	root       int // group rank
	count      int64
	sendOffset int64  // equal to recvOffset if in place
	recvOffset int64  // in the outputs
	digest     uint64 // unique to the call
}

// layout is common to all trials whose outputs share an array.
type layout struct {
	dataType driver.DataType
	inPlace  bool
	noWindow bool // buffers are outside windows, at different offsets on each rank
}

func (c *trial) String() string {
	return fmt.Sprintf("%v %v of %d %v, root %d, in place: %v, outside windows: %v, from %d to %d",
		c.operation, c.op, c.count, c.dataType, c.root, c.inPlace, c.noWindow, c.sendOffset, c.recvOffset)
}

func (c *trial) spans(ranks int) (send, recv int64) {
	const anyRank = 0 // spans do not depend on it
	// Spans returns bytes, which are elements for Uint8.
	call := driver.Call{Operation: c.operation, Count: c.count, DataType: driver.Uint8}
	return call.Spans(ranks, anyRank)
}

// extent returns how many elements of the outputs the trial occupies.
func (c *trial) extent(ranks int) int64 {
	send, recv := c.spans(ranks)
	if c.inPlace {
		return max(send, recv)
	}

	return recv
}

// partOffset returns where a rank's part begins in a buffer that has a part for each rank.
func (c *trial) partOffset(rank int) int64 { return int64(rank) * c.count }

// piece is a range of the expected output, copied from a repeated tile.
type piece struct {
	offset     int64 // in a rank's outputs
	count      int64
	tile       []byte
	tileOffset int64
}

type sources struct {
	inputs  [][]byte // by rank
	reduced []byte   // reduction of all inputs
}

// pieces returns a rank's expected output. Elements outside the pieces must not change.
func (c *trial) pieces(rank int, s *sources) []piece {
	output := piece{offset: c.recvOffset, count: c.count, tileOffset: c.sendOffset}
	switch c.operation {
	case driver.AllReduce:
		output.tile = s.reduced
	case driver.Reduce:
		if rank != c.root {
			return nil
		}

		output.tile = s.reduced
	case driver.ReduceScatter:
		output.tile = s.reduced
		output.tileOffset += c.partOffset(rank)
		if c.inPlace {
			output.offset += c.partOffset(rank)
		}
	case driver.Broadcast:
		output.tile = s.inputs[c.root]
	default: // AllGather, AllToAll
		return c.piecesFromAll(rank, s)
	}

	return []piece{output}
}

// piecesFromAll returns a piece from each rank, for AllGather and AllToAll.
func (c *trial) piecesFromAll(rank int, s *sources) []piece {
	var all []piece
	for source, input := range s.inputs {
		tileOffset := c.sendOffset
		switch {
		case c.operation == driver.AllToAll:
			tileOffset += c.partOffset(rank)
		case c.inPlace: // an AllGather, whose source sends its own part of the outputs
			tileOffset += c.partOffset(source)
		}

		all = append(all, piece{
			offset: c.recvOffset + c.partOffset(source), count: c.count,
			tile: input, tileOffset: tileOffset,
		})
	}

	return all
}

// leadBytes is the minimum size of the area before a field, which calls must not change.
const leadBytes = 256

// field is an array of inputs or outputs in a region.
type field struct {
	memory *region
	base   int64 // byte offset of the first element
}

func (f field) at(element int64, t driver.DataType) uintptr {
	return f.memory.segment.Address() + uintptr(f.base+element*int64(t.Size()))
}

func (c *trial) call(rank int, inputs, outputs field) driver.Call {
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.op, Root: c.root, Count: c.count,
		Path: driver.PathDirect, Digest: c.digest,
		Send: inputs.at(c.sendOffset, c.dataType), Recv: outputs.at(c.recvOffset, c.dataType),
	}
	if c.inPlace {
		inputs = outputs
		call.Send = call.Recv
		partAddress := outputs.at(c.recvOffset+c.partOffset(rank), c.dataType)
		switch c.operation {
		case driver.AllGather:
			call.Send = partAddress
		case driver.ReduceScatter:
			call.Recv = partAddress
		default: // Send and Recv are equal
		}
	}

	if !c.noWindow && c.operation != driver.Barrier {
		call.SendWindow = inputs.memory.window
		call.RecvWindow = outputs.memory.window
	}

	return call
}
