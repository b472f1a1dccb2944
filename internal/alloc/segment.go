package alloc

import (
	"fmt"
	"iter"
)

// Segment is one physical allocation of the arena as callers know it.
type Segment struct {
	Ordinal int32  // number in order of creation from 0, never given out again
	Bytes   int64  // size
	Address uint64 // where the caller said that it lies
	Stream  Stream // the one stream whose blocks it holds
}

// segment is the record of a segment. A trimmed one keeps its ordinal and nothing else.
type segment struct {
	base    uint64 // position of its first unit: in order of creation, or by address
	bytes   int64  // 0 once trimmed
	address uint64
	home    uint32
	first   uint32 // block at offset 0
}

// AddSegment adds a mapped segment of growth.Bytes at an address and returns its ordinal, which
// is the number of segments added before. The address matters only to the Address policy.
//
// Errors: ErrSize if the bytes are no multiple of Unit or none are wanted, ErrAddress,
// *OutOfMemoryError if Capacity would be passed, ErrExhausted.
func (c *Core) AddSegment(growth Growth, address uint64) (int32, error) {
	c.mergeHot()
	c.reports.clear()
	bytes, ordinal := growth.Bytes, int32(len(c.segments))
	if bytes <= 0 || bytes > MaxSize || bytes%Unit != 0 || int(growth.home) >= len(c.homes) {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrSize)
	}
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		return 0, c.outOfMemory(bytes, growth.home)
	}
	base, err := c.baseFor(bytes, address)
	if err != nil {
		return 0, err
	}
	c.tail += uint64(bytes) >> unitShift
	c.mapped += bytes
	c.counts.segments++
	c.counts.peakMapped = max(c.counts.peakMapped, c.mapped)
	id := c.grab()
	c.segments = append(c.segments, segment{
		base: base, bytes: bytes, address: address, home: growth.home, first: id,
	})
	if c.homes[growth.home] == nil {
		c.homes[growth.home] = new(index)
	}
	b := &c.blocks[id]
	*b = block{
		place: base<<idBits | uint64(ordinal), span: uint64(bytes) >> unitShift << idBits,
		generation: b.generation,
	}
	c.insert(c.homes[growth.home], b, id, b.units())
	return ordinal, nil
}

// baseFor returns the position of a new segment in the order of the policy.
func (c *Core) baseFor(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	switch {
	case c.tail+units > atLimit || len(c.blocks) >= maxBlocks || len(c.segments) >= maxBlocks:
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrExhausted)
	case c.config.Policy == Creation:
		return c.tail, nil
	case address%Unit != 0 || address>>unitShift+units > atLimit:
		return 0, fmt.Errorf("adding a segment at %#x: %w", address, ErrAddress)
	}
	return address >> unitShift, nil
}

// View is a block as seen from outside: free ones too.
type View struct {
	Block
	State  State
	Stream Stream
	Pins   int32
}

func (c *Core) viewOf(id uint32) View {
	b := &c.blocks[id]
	v := View{
		Block: c.view(id), State: b.state(), Pins: c.sides[id].pins,
		Stream: c.streamOf(c.homeOf(b)),
	}
	if b.state() == Free {
		v.Handle = 0
	}
	return v
}

func (c *Core) segmentView(ordinal int32) Segment {
	s := &c.segments[ordinal]
	return Segment{ordinal, s.bytes, s.address, c.streamOf(s.home)}
}

// Blocks yields the blocks of a segment by offset, free ones too. It yields nothing for a
// segment that was trimmed or never added. The Core must not change meanwhile.
func (c *Core) Blocks(ordinal int32) iter.Seq[View] {
	c.mergeHot()
	return func(yield func(View) bool) {
		if ordinal < 0 || int(ordinal) >= len(c.segments) {
			return
		}
		for id := c.segments[ordinal].first; id != 0; id = c.blocks[id].next {
			if !yield(c.viewOf(id)) {
				return
			}
		}
	}
}

// Trim removes segments that are wholly free, newest first, as long as at least keep bytes stay
// mapped, and returns them in that order for the caller to deregister and unmap. Their ordinals
// are not given out again. The slice is valid until the next call that changes the Core.
func (c *Core) Trim(keep int64) []Segment {
	c.mergeHot()
	c.reports.clear()
	for ordinal := len(c.segments) - 1; ordinal >= 0; ordinal-- {
		s := &c.segments[ordinal]
		if s.bytes == 0 || c.mapped-s.bytes < keep || !c.whollyFree(s) {
			continue
		}
		c.reports.filled = true
		c.reports.trimmed = append(c.reports.trimmed, c.segmentView(int32(ordinal)))
		b := &c.blocks[s.first]
		c.remove(c.homes[s.home], b, b.units())
		c.drop(b, s.first)
		c.mapped -= s.bytes
		c.counts.segments--
		*s = segment{home: s.home}
	}
	return c.reports.trimmed
}

// whollyFree reports whether one free block covers a segment.
func (c *Core) whollyFree(s *segment) bool {
	b := &c.blocks[s.first]
	return b.state() == Free && b.size() == s.bytes
}
