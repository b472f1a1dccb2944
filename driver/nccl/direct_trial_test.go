package nccl

import (
	"fmt"

	"symmem/driver"
)

// trial is a test case: a collective call on the direct path that all ranks make. Offsets and
// counts are in elements. A buffer of some operations has a part of count elements for each rank.
type trial struct {
	layout    // of the buffers
	operation driver.Operation
	op        driver.ReduceOp // for operations that reduce
	root      int             // group rank, for operations with a root
	count     int64           // driver.Call.Count
	// sendOffset and recvOffset are the offsets of the buffers in the fields of a rank. They are
	// equal if inPlace is set.
	sendOffset, recvOffset int64
	digest                 uint64 // the same on all ranks, and different for each call
}

// layout is common to all calls whose outputs share memory.
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
	// Spans returns sizes in bytes. With elements of one byte, these are numbers of elements.
	call := driver.Call{Operation: c.operation, Count: c.count, DataType: driver.Uint8}
	return call.Spans(ranks, anyRank)
}

// extent returns how many elements of the output field the call occupies.
func (c *trial) extent(ranks int) int64 {
	send, recv := c.spans(ranks)
	if c.inPlace { // the input is in the output field, too
		return max(send, recv)
	}

	return recv
}

// piece is a range of the expected output with count elements. It consists of repeated copies of
// tile, beginning at element tileOffset of the tile.
type piece struct {
	offset, count int64 // in the output field of a rank
	tile          []byte
	tileOffset    int64
}

// sources holds the tiles from which the expected outputs of all trials are computed.
type sources struct {
	inputs  [][]byte // each rank's input repeats its tile
	reduced []byte   // the reduction of inputs, as long as a tile
}

// pieces returns the expected output of a rank. Elements outside the pieces must not change.
func (c *trial) pieces(rank int, s *sources) []piece {
	ownOffset := int64(rank) * c.count // of this rank's part in a buffer with a part for each rank
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
		output.tileOffset += ownOffset
		if c.inPlace { // the output is this rank's part of its input
			output.offset += ownOffset
		}
	case driver.Broadcast:
		output.tile = s.inputs[c.root]
	default: // AllGather, AllToAll
		return c.parts(ownOffset, s)
	}

	return []piece{output}
}

// parts returns the expected output of an AllGather or AllToAll, a piece from each rank. ownOffset
// is the offset of this rank's part in a buffer with a part for each rank.
func (c *trial) parts(ownOffset int64, s *sources) []piece {
	var all []piece
	for r, input := range s.inputs {
		partOffset := int64(r) * c.count // of rank r's part
		tileOffset := c.sendOffset
		switch {
		case c.operation == driver.AllToAll:
			tileOffset += ownOffset
		case c.inPlace: // the input of an in-place AllGather is rank r's part of its output
			tileOffset += partOffset
		}

		all = append(all, piece{
			offset: c.recvOffset + partOffset, count: c.count, tile: input, tileOffset: tileOffset,
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

// call returns the call that a rank makes, with buffers in the fields send and recv. An in-place
// call has both buffers in recv.
func (c *trial) call(rank int, send, recv field) driver.Call {
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.op, Root: c.root, Count: c.count,
		Path: driver.PathDirect, Digest: c.digest,
		Send: send.at(c.sendOffset, c.dataType), Recv: recv.at(c.recvOffset, c.dataType),
	}
	ownOffset := int64(rank) * c.count
	if c.inPlace {
		send = recv
		call.Send = call.Recv
		switch c.operation {
		case driver.AllGather:
			call.Send = recv.at(c.recvOffset+ownOffset, c.dataType)
		case driver.ReduceScatter:
			call.Recv = recv.at(c.recvOffset+ownOffset, c.dataType)
		default: // both buffers are the same
		}
	}

	if !c.noWindow && c.operation != driver.Barrier {
		call.SendWindow, call.RecvWindow = send.memory.window, recv.memory.window
	}

	return call
}
