package alloc

import (
	"fmt"
	"iter"
)

// Segment describes mapped memory of the arena.
type Segment struct {
	Ordinal int32 // number of segments added earlier; never reused
	Bytes   int64
	Address uint64
	Stream  Stream // stream for which it was mapped
}

type segment struct {
	base    uint64 // arena position of its first unit
	bytes   int64  // 0 once trimmed
	address uint64
	indexID uint32
	first   uint32 // first region; 0 once trimmed
	retired bool   // see Rebuild
}

// AddSegment adds a segment that the caller has mapped at the given address, and returns its
// ordinal. Only the Address policy uses the address.
//
// Errors: ErrSize, ErrAddress, *OutOfMemoryError if Capacity would be exceeded, ErrExhausted.
func (c *Core) AddSegment(growth Growth, address uint64) (int32, error) {
	c.mergeHot()
	c.reports.clear()
	bytes, indexID, ordinal := growth.Bytes, growth.indexID, int32(len(c.segments))
	if bytes <= 0 || bytes > MaxSize || bytes%Unit != 0 || int(indexID) >= len(c.indexes) {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrSize)
	}
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mapped {
		return 0, c.outOfMemory(bytes, indexID)
	}
	base, err := c.baseFor(bytes, address)
	if err != nil {
		return 0, err
	}
	c.arenaEnd += uint64(bytes) >> unitShift
	c.mapped += bytes
	c.counts.segments++
	c.counts.peakMapped = max(c.counts.peakMapped, c.mapped)
	owner := c.streams[indexID/2].number
	regionID := c.coverSegment(base, uint64(bytes)>>unitShift, indexID, owner, ordinal)
	if growth.reserved {
		_, end := c.extent(regionID)
		c.regions[regionID].reserve(end)
	}
	c.segments = append(c.segments, segment{
		base: base, bytes: bytes, address: address, indexID: indexID, first: regionID,
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

// Blocks yields the blocks of a segment, including free ones, by offset. The Core must not change
// during the iteration.
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

// Trim removes wholly free segments, newest first, as long as at least keep bytes stay mapped. It
// returns them in this order, in a slice that is valid until the next call that changes the Core.
func (c *Core) Trim(keep int64) []Segment {
	c.mergeHot()
	c.reports.clear()
	for ordinal := len(c.segments) - 1; ordinal >= 0; ordinal-- {
		s := &c.segments[ordinal]
		if s.bytes == 0 || c.mapped-s.bytes < keep || !c.isFree(s) {
			continue
		}
		c.reports.filled = true
		c.reports.trimmed = append(c.reports.trimmed, c.segmentView(int32(ordinal)))
		c.dropRegions(s.first)
		c.mapped -= s.bytes
		c.counts.segments--
		*s = segment{indexID: s.indexID}
	}
	return c.reports.trimmed
}

// Held lists the segments, and the blocks that are live or pinned. Error: ErrDeferred.
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
		all.Segments = append(all.Segments, Extent{s.bytes, s.indexID&1 != 0})
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

// Rebuild changes the layout of a Core to an Arrangement from Union. Live and pinned blocks keep
// their positions and handles. The 2 MiB spans that contain live blocks belong to the streams of
// those blocks. All other memory is clean and belongs to stream 0. Streams are numbered again.
// Cores that have been rebuilt to the same Arrangement return the same results for the same calls.
//
// Before Rebuild, the caller must wait for all streams and call Synced for each. Rebuild returns
// the retired segments that hold no blocks, which the caller may unmap.
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
	held := r.dropUnheld(len(l.Segments))
	var gone []Segment
	c.hasKept = len(l.Kept) > 0
	for ordinal, extent := range l.Segments {
		switch r.restore(int32(ordinal), extent, held[ordinal]) {
		case absent, usable:
		case retired:
			c.hasKept = true
		case unused:
			gone = append(gone, c.segmentView(int32(ordinal)))
			c.segments[ordinal] = segment{}
		}
	}
	c.cutBlocks = r.newCuts
	c.counts.peakMapped = max(c.counts.peakMapped, c.mapped)
	return gone, nil
}

// HasKept reports whether the latest Rebuild kept ranges or left retired segments mapped. Another
// Rebuild may free them.
func (c *Core) HasKept() bool { return c.hasKept }
