package nccl

import (
	"fmt"

	"symmem/driver"
)

// A trial is one collective call on the direct path, with the same arguments on all ranks. Offsets
// and counts are in elements. For example, two ranks make an AllGather with count 3:
//
//   - Each rank has two fields, arrays of elements in its memory: one for inputs, one for outputs.
//     The field of inputs repeats a tile: a list of random elements, different on each rank.
//   - sendOffset is 10, so the input of a rank is its elements 10 to 12 in the field of inputs.
//   - recvOffset is 20, so the output is elements 20 to 25 in the field of outputs. It has a part
//     of count elements for each rank: part 0 begins at 20, and part 1 at 23.
//   - The expected output is two pieces. Piece 0 is at 20 and holds elements 10 to 12 of rank 0's
//     tile. Piece 1 is at 23 and holds the same elements of rank 1's tile.
//
// A trial in place has its input in the field of outputs, too, and both offsets are equal.

// trial is a collective call on the direct path that all ranks make.
type trial struct {
	layout
	operation  driver.Operation
	op         driver.ReduceOp // for operations that reduce
	root       int             // group rank, for operations with a root
	count      int64           // driver.Call.Count
	sendOffset int64           // in the field of inputs, or equal to recvOffset if in place
	recvOffset int64           // in the field of outputs
	digest     uint64          // the same on all ranks, and different for each call
}

// layout is common to all trials whose outputs share memory.
type layout struct {
	dataType driver.DataType
	inPlace  bool
	// noWindow is set if the buffers are outside windows. Their addresses then have different
	// offsets on each rank.
	noWindow bool
}

func (c *trial) String() string {
	return fmt.Sprintf("%v %v of %d %v, root %d, in place: %v, outside windows: %v, from %d to %d",
		c.operation, c.op, c.count, c.dataType, c.root, c.inPlace, c.noWindow, c.sendOffset, c.recvOffset)
}

// spans returns the number of elements in each buffer, which is the same on all ranks.
func (c *trial) spans(ranks int) (send, recv int64) {
	const anyRank = 0
	// Call.Spans returns bytes. An element of Uint8 has one byte, so these are also elements.
	call := driver.Call{Operation: c.operation, Count: c.count, DataType: driver.Uint8}
	return call.Spans(ranks, anyRank)
}

// extent returns how many elements of the field of outputs the trial occupies.
func (c *trial) extent(ranks int) int64 {
	send, recv := c.spans(ranks)
	if c.inPlace { // the input is there, too
		return max(send, recv)
	}

	return recv
}

// partOffset returns the offset of a rank's part in a buffer that has a part for each rank.
func (c *trial) partOffset(rank int) int64 { return int64(rank) * c.count }

// piece is a range of the expected output. It holds elements of a tile, beginning at tileOffset.
// After the last element of the tile, it continues with the first.
type piece struct {
	offset     int64 // in a rank's field of outputs
	count      int64
	tile       []byte
	tileOffset int64
}

// sources holds the tiles from which the expected outputs of all trials are computed.
type sources struct {
	inputs  [][]byte // the tile of each rank's inputs
	reduced []byte   // the reduction of all inputs, which is as long as a tile
}

// pieces returns the expected output of a rank. Elements outside the pieces must not change.
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
		if c.inPlace { // the output is this rank's part of its input
			output.offset += c.partOffset(rank)
		}
	case driver.Broadcast:
		output.tile = s.inputs[c.root]
	default: // AllGather, AllToAll
		return c.piecesFromAll(rank, s)
	}

	return []piece{output}
}

// piecesFromAll returns the expected output of an AllGather or AllToAll: a piece from each rank.
func (c *trial) piecesFromAll(rank int, s *sources) []piece {
	var all []piece
	for source, input := range s.inputs {
		tileOffset := c.sendOffset
		switch {
		case c.operation == driver.AllToAll: // the source sends a part to each rank
			tileOffset += c.partOffset(rank)
		case c.inPlace: // the input of an AllGather in place is the source's part of its output
			tileOffset += c.partOffset(source)
		}

		all = append(all, piece{
			offset: c.recvOffset + c.partOffset(source), count: c.count,
			tile: input, tileOffset: tileOffset,
		})
	}

	return all
}

// leadBytes is the minimum number of bytes in a region before the first element of a field. Calls
// must not change them.
const leadBytes = 256

// field is an array of elements in a rank's region, in which the buffers of trials are placed.
type field struct {
	memory *region
	base   int64 // byte offset of the first element in the region
}

// at returns the address of an element of type t.
func (f field) at(element int64, t driver.DataType) uintptr {
	return f.memory.segment.Address() + uintptr(f.base+element*int64(t.Size()))
}

// call returns the call that a rank makes. send is its field of inputs, and recv its field of
// outputs.
func (c *trial) call(rank int, send, recv field) driver.Call {
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.op, Root: c.root, Count: c.count,
		Path: driver.PathDirect, Digest: c.digest,
		Send: send.at(c.sendOffset, c.dataType), Recv: recv.at(c.recvOffset, c.dataType),
	}
	if c.inPlace {
		send = recv
		call.Send = call.Recv
		partAddress := recv.at(c.recvOffset+c.partOffset(rank), c.dataType)
		switch c.operation {
		case driver.AllGather:
			call.Send = partAddress
		case driver.ReduceScatter:
			call.Recv = partAddress
		default: // both buffers are the same
		}
	}

	if !c.noWindow && c.operation != driver.Barrier {
		call.SendWindow = send.memory.window
		call.RecvWindow = recv.memory.window
	}

	return call
}
