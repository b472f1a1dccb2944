package nccl

import (
	"fmt"

	"symmem/driver"
)

// trial describes a call that all ranks make. Offsets and counts are in elements.
type trial struct {
	layout
	operation driver.Operation
	op        driver.ReduceOp
	root      int
	count     int64
	// from is the offset of the input. to is the offset of the output. They are equal for in-place
	// calls.
	from, to int64
	digest   uint64
}

// layout describes the buffers of a call.
type layout struct {
	dataType driver.DataType
	inPlace  bool
	// loose reports whether the buffers are outside windows, at different offsets on each rank.
	loose bool
}

func (c *trial) String() string {
	return fmt.Sprintf("%v %v of %d %v, root %d, in place: %v, outside windows: %v, from %d to %d",
		c.operation, c.op, c.count, c.dataType, c.root, c.inPlace, c.loose, c.from, c.to)
}

// spans returns the number of elements in each buffer.
func (c *trial) spans(ranks int) (send, recv int64) {
	call := driver.Call{Operation: c.operation, Count: c.count, DataType: driver.Uint8}
	return call.Spans(ranks, 0)
}

// extent returns the number of elements of output memory that the call uses.
func (c *trial) extent(ranks int) int64 {
	send, recv := c.spans(ranks)
	if c.inPlace {
		return max(send, recv)
	}
	return recv
}

// piece describes a part of the expected output, at offset to. The part has count elements of a
// repeated tile, beginning with element from of the tile.
type piece struct {
	to, count int64
	tile      []byte
	from      int64
}

// sources holds each rank's elements and their reduction.
type sources struct {
	inputs  [][]byte
	reduced []byte
}

// pieces returns the expected output of a group rank.
func (c *trial) pieces(rank int, s *sources) []piece {
	ownOffset := int64(rank) * c.count
	switch c.operation {
	case driver.AllReduce:
		return []piece{{c.to, c.count, s.reduced, c.from}}
	case driver.Reduce:
		if rank != c.root {
			return nil
		}
		return []piece{{c.to, c.count, s.reduced, c.from}}
	case driver.ReduceScatter:
		if c.inPlace {
			return []piece{{c.to + ownOffset, c.count, s.reduced, c.from + ownOffset}}
		}
		return []piece{{c.to, c.count, s.reduced, c.from + ownOffset}}
	case driver.Broadcast:
		return []piece{{c.to, c.count, s.inputs[c.root], c.from}}
	default:
		return c.parts(ownOffset, s)
	}
}

// parts returns the expected output of AllGather and AllToAll. It has a part for each rank.
func (c *trial) parts(ownOffset int64, s *sources) []piece {
	var all []piece
	for r, of := range s.inputs {
		at := int64(r) * c.count
		from := c.from
		switch {
		case c.operation == driver.AllToAll:
			from += ownOffset
		case c.inPlace:
			from += at
		}
		all = append(all, piece{c.to + at, c.count, of, from})
	}
	return all
}

// lead is the minimum number of bytes before the first element. They must not change.
const lead = 256

// field describes the position of a rank's elements in memory.
type field struct {
	memory *region
	base   int64 // of the first element, in bytes
}

func (f field) at(element int64, t driver.DataType) uintptr {
	return f.memory.segment.Address() + uintptr(f.base+element*int64(t.Size()))
}

// call returns the call of a trial on a rank.
func (c *trial) call(rank int, send, recv field) driver.Call {
	call := driver.Call{
		Operation: c.operation, DataType: c.dataType, ReduceOp: c.op, Root: c.root, Count: c.count,
		Path: driver.PathDirect, Digest: c.digest,
		Send: send.at(c.from, c.dataType), Recv: recv.at(c.to, c.dataType),
	}
	ownOffset := int64(rank) * c.count
	if c.inPlace {
		send = recv
		call.Send = call.Recv
		switch c.operation {
		case driver.AllGather:
			call.Send = recv.at(c.to+ownOffset, c.dataType)
		case driver.ReduceScatter:
			call.Recv = recv.at(c.to+ownOffset, c.dataType)
		default: // both buffers are the same
		}
	}
	if !c.loose && c.operation != driver.Barrier {
		call.SendWindow, call.RecvWindow = send.memory.window, recv.memory.window
	}
	return call
}
