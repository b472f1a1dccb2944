package alloc

import (
	"fmt"
	"iter"
)

// Segment describes one physical allocation of the arena.
type Segment struct {
	Ordinal int32  // number of segments added earlier; never reused
	Bytes   int64  // size
	Address uint64 // address passed by the caller
	Stream  Stream // stream for which it was mapped
}

// segment is the record of a segment. A trimmed segment keeps only its ordinal and home.
type segment struct {
	base    uint64 // position of its first unit; positions are in the order of the Policy
	bytes   int64  // 0 once trimmed
	address uint64
	home    uint32
	first   uint32 // region at offset 0; 0 once trimmed
	retired bool   // see Rebuild
}

// AddSegment adds a segment of growth.Bytes, which the caller has mapped at the given address, and
// returns its ordinal. Only the Address policy uses the address.
//
// Errors: ErrSize if growth.Bytes is 0 or not a multiple of Unit, ErrAddress, *OutOfMemoryError if
// Capacity would be exceeded, ErrExhausted.
func (c *Core) AddSegment(growth Growth, address uint64) (int32, error) {
	c.mergeHot()
	c.reports.clear()
	bytes, home, ordinal := growth.Bytes, growth.home, int32(len(c.segments))
	if bytes <= 0 || bytes > MaxSize || bytes%Unit != 0 || int(home) >= len(c.homes) {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrSize)
	}
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		return 0, c.outOfMemory(bytes, home)
	}
	base, err := c.baseFor(bytes, address)
	if err != nil {
		return 0, err
	}
	c.tail += uint64(bytes) >> unitShift
	c.mapped += bytes
	c.counts.segments++
	c.counts.peakMapped = max(c.counts.peakMapped, c.mapped)
	r := c.cover(base, uint64(bytes)>>unitShift, home, c.streams[home/2].number, ordinal)
	if growth.reserved {
		_, end := c.extent(r)
		c.regions[r].reserve(end)
	}
	c.segments = append(c.segments, segment{
		base: base, bytes: bytes, address: address, home: home, first: r,
	})
	return ordinal, nil
}

// View describes a block in any state.
type View struct {
	Block
	State  State
	Stream Stream
	Pins   int32
}

// Blocks yields the blocks of a segment, including free ones, by offset. It yields nothing for a
// segment that has been trimmed or was never added. The Core must not change during the iteration.
func (c *Core) Blocks(ordinal int32) iter.Seq[View] {
	c.mergeHot()
	return func(yield func(View) bool) {
		for id := range c.blocksOf(ordinal) {
			if !yield(c.viewOf(id)) {
				return
			}
		}
	}
}

// Trim removes wholly free segments, newest first, as long as at least keep bytes stay mapped.
// It returns the removed segments, newest first, so that the caller can deregister and unmap
// them. Their ordinals are not reused. The slice is valid until the next call that changes the
// Core.
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

// Held lists the segments, and the blocks that are live or pinned. It omits blocks that this rank
// keeps only because they are pinned on other ranks. Error: ErrDeferred.
func (c *Core) Held() (Inventory, error) {
	c.mergeHot()
	var all Inventory
	numbers := map[Stream]uint32{0: 0}
	for ordinal := range c.segments {
		s := &c.segments[ordinal]
		if s.bytes == 0 || s.retired {
			all.Segments = append(all.Segments, Extent{})
			continue
		}
		all.Segments = append(all.Segments, Extent{s.bytes, s.home&1 != 0})
		for v := range c.Blocks(int32(ordinal)) {
			switch {
			case v.State == Free, v.State == Parked && v.Pins == 0:
				continue
			case v.State == Deferred:
				return Inventory{}, fmt.Errorf("listing blocks: %w", ErrDeferred)
			}
			h := Held{
				Range: extentOf(v.Block, c.cutBlocks), Live: v.State == Live, Pinned: v.Pins > 0,
			}
			if h.Live {
				if _, known := numbers[v.Stream]; !known {
					numbers[v.Stream] = uint32(len(numbers))
				}
				h.Stream = numbers[v.Stream]
			}
			all.Blocks = append(all.Blocks, h)
		}
	}
	return all, nil
}

// Rebuild changes the layout of a Core to an Arrangement that Union has computed from the
// inventories of this Core and others. Live and pinned blocks keep their positions and handles. The
// spans that contain live blocks belong to the streams of those blocks; all other memory is clean
// and belongs to stream 0. The streams of live blocks are numbered as in [Held], and other streams
// get their numbers at their next request. Cores that have been rebuilt to the same Arrangement
// return the same results for the same calls.
//
// Before Rebuild, the caller must wait for all streams and call Synced for each. Rebuild returns
// the retired segments that hold no blocks, so that the caller can unmap them. Nothing is
// allocated from the other retired segments; a later Rebuild returns them once they hold no
// blocks.
//
// Error: ErrDeferred, which leaves the Core unchanged.
func (c *Core) Rebuild(l Arrangement) ([]Segment, error) {
	c.mergeHot()
	c.reports.clear()
	if len(c.deferringStreams()) > 0 {
		return nil, fmt.Errorf("rebuilding: %w", ErrDeferred)
	}
	r := rebuilder{
		placer: &c.placer, streams: &c.streamTable, uses: &c.useTable, kept: l.Kept,
		oldCuts: c.cutBlocks, newCuts: map[uint32]Range{},
	}
	held := r.empty(len(l.Segments))
	var gone []Segment
	c.keeps = len(l.Kept) > 0
	for ordinal, extent := range l.Segments {
		switch r.restore(int32(ordinal), extent, held[ordinal]) {
		case absent, usable:
		case retired:
			c.keeps = true
		case unused:
			gone = append(gone, c.segmentView(int32(ordinal)))
			c.segments[ordinal] = segment{}
		}
	}
	c.cutBlocks = r.newCuts
	c.counts.peakMapped = max(c.counts.peakMapped, c.mapped)
	return gone, nil
}

// Keeps reports whether the latest Rebuild kept ranges or left retired segments mapped. Another
// Rebuild may free them.
func (c *Core) Keeps() bool { return c.keeps }
