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
	Stream  Stream // stream that it was mapped for
}

// segment is the record of a segment. A trimmed one keeps its ordinal and nothing else.
type segment struct {
	base    uint64 // position of its first unit: in order of creation, or by address
	bytes   int64  // 0 once trimmed
	address uint64
	home    uint32
	first   uint32 // region at offset 0; 0 once trimmed
	retired bool   // see Rebuild
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
	r := c.cover(base, uint64(bytes)>>unitShift, growth.home, ordinal)
	if growth.reserved {
		_, end := c.extent(r)
		c.regions[r].reserve(end)
	}
	c.segments = append(c.segments, segment{
		base: base, bytes: bytes, address: address, home: growth.home, first: r,
	})
	return ordinal, nil
}

// cover makes the region that is all of a new segment, and returns it.
func (c *Core) cover(base, units uint64, home uint32, ordinal int32) uint32 {
	r, id, ring := c.grabRegion(), c.grab(), c.grab()
	c.regions[r] = region{
		origin: base, high: base, floor: base, ordinal: ordinal, home: home, ring: ring,
		owner: c.streams[home/2].number,
	}
	if c.homes[home] == nil {
		c.homes[home] = new(index)
	}
	b, around := &c.blocks[id], &c.blocks[ring]
	b.place, b.span, b.next = base<<idBits|uint64(r), units<<idBits|uint64(ring), ring
	around.rest, around.span, around.next = uint64(vacant), uint64(id), id
	c.insert(c.homes[home], b, id, units)
	return r
}

// baseFor returns the position of a new segment in the order of the policy.
func (c *Core) baseFor(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	switch {
	case c.tail+units > atLimit || len(c.blocks)+1 >= maxBlocks || len(c.regions) >= maxBlocks:
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
		for r := c.segments[ordinal].first; r != 0; r = c.regions[r].next {
			ring := c.regions[r].ring
			for id := c.blocks[ring].next; id != ring; id = c.blocks[id].next {
				if !yield(c.viewOf(id)) {
					return
				}
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
		c.vacate(s.first)
		c.mapped -= s.bytes
		c.counts.segments--
		*s = segment{home: s.home}
	}
	return c.reports.trimmed
}

// whollyFree reports whether one free block covers each region of a segment.
func (c *Core) whollyFree(s *segment) bool {
	for r := s.first; r != 0; r = c.regions[r].next {
		if _, free := c.single(r); !free {
			return false
		}
	}
	return true
}

// vacate drops the regions of a segment that is wholly free.
func (c *Core) vacate(r uint32) {
	for r != 0 {
		g := c.regions[r]
		id, _ := c.single(r)
		c.remove(c.homes[g.home], &c.blocks[id], c.blocks[id].units())
		c.drop(&c.blocks[id], id)
		c.drop(&c.blocks[g.ring], g.ring)
		c.dropRegion(r)
		r = g.next
	}
}

// Held returns the segments and the blocks that are not free. Memory that is kept only because
// other ranks hold it counts as free. Error: ErrDeferred.
func (c *Core) Held() (Inventory, error) { return rebuilder{c}.held() }

// Rebuild replaces the free space of a Core by that of an arrangement that Union has computed from
// inventories including this Core's. Held blocks keep their places and handles. Memory in the spans
// of live blocks belongs to their stream, and all other memory to stream 0, as clean memory. The
// streams of live blocks are numbered as in [Held], others at their next use. Once the Cores of
// several ranks are rebuilt to the same arrangement, the same calls have the same results on all.
//
// The caller has waited for all streams, and has called Synced for each. It returns the
// retired segments without held blocks, for the caller to unmap. Nothing is allocated from the
// other retired segments; the Rebuild that finds one free returns it.
//
// Error: ErrDeferred, and nothing was changed.
func (c *Core) Rebuild(l Arrangement) ([]Segment, error) { return rebuilder{c}.rebuild(l) }

// Keeps reports whether the latest Rebuild left ranges kept or retired segments mapped, which
// another Rebuild may free.
func (c *Core) Keeps() bool { return c.keeps }
