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
	// The offsets are the same for in-place calls.
	sendOffset, recvOffset int64
	digest                 uint64
}

type layout struct {
	dataType driver.DataType
	inPlace  bool
	// The offsets of buffers outside windows differ between ranks.
	noWindow bool
}

func (c *trial) String() string {
	return fmt.Sprintf("%v %v of %d %v, root %d, in place: %v, outside windows: %v, from %d to %d",
		c.operation, c.op, c.count, c.dataType, c.root, c.inPlace, c.noWindow, c.sendOffset, c.recvOffset)
}

// spans returns the number of elements in each buffer.
func (c *trial) spans(ranks int) (send, recv int64) {
	call := driver.Call{Operation: c.operation, Count: c.count, DataType: driver.Uint8}
	return call.Spans(ranks, 0)
}

// extent returns how many elements of output memory the call occupies.
func (c *trial) extent(ranks int) int64 {
	send, recv := c.spans(ranks)
	if c.inPlace {
		return max(send, recv)
	}
	return recv
}

// piece is a part of the expected output. Its values come from repeating tile, starting at element
// tileOffset of the tile.
type piece struct {
	offset, count int64
	tile          []byte
	tileOffset    int64
}

// sources holds each rank's elements and their reduction.
type sources struct {
	inputs  [][]byte
	reduced []byte
}

func (c *trial) pieces(rank int, s *sources) []piece {
	ownOffset := int64(rank) * c.count
	switch c.operation {
	case driver.AllReduce:
		return []piece{{c.recvOffset, c.count, s.reduced, c.sendOffset}}
	case driver.Reduce:
		if rank != c.root {
			return nil
		}
		return []piece{{c.recvOffset, c.count, s.reduced, c.sendOffset}}
	case driver.ReduceScatter:
		if c.inPlace {
			return []piece{{c.recvOffset + ownOffset, c.count, s.reduced, c.sendOffset + ownOffset}}
		}
		return []piece{{c.recvOffset, c.count, s.reduced, c.sendOffset + ownOffset}}
	case driver.Broadcast:
		return []piece{{c.recvOffset, c.count, s.inputs[c.root], c.sendOffset}}
	default:
		return c.parts(ownOffset, s)
	}
}

// parts returns the expected output of an AllGather or AllToAll.
func (c *trial) parts(ownOffset int64, s *sources) []piece {
	var all []piece
	for r, input := range s.inputs {
		partOffset := int64(r) * c.count
		tileOffset := c.sendOffset
		switch {
		case c.operation == driver.AllToAll:
			tileOffset += ownOffset
		case c.inPlace:
			tileOffset += partOffset
		}
		all = append(all, piece{c.recvOffset + partOffset, c.count, input, tileOffset})
	}
	return all
}

// leadBytes is the minimum number of bytes before the first element, which must not change.
const leadBytes = 256

// field describes the position of a rank's elements in memory.
type field struct {
	memory *region
	base   int64 // byte offset of the first element
}

func (f field) at(element int64, t driver.DataType) uintptr {
	return f.memory.segment.Address() + uintptr(f.base+element*int64(t.Size()))
}

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
