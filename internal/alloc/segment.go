package alloc

import (
	"fmt"
	"iter"
)

// Segment describes a range of mapped memory.
type Segment struct {
	Ordinal int32 // from 0; never reused
	Bytes   int64
	Address uint64 // as passed to AddSegment
	Stream  Stream // stream for which the segment was mapped
}

type segment struct {
	base        uint64 // position in the arena, in units
	bytes       int64  // 0 once Trim or Rebuild has removed the segment
	address     uint64
	indexID     uint32 // index of the stream for which the segment was mapped
	firstRegion uint32 // 0 once Trim or Rebuild has removed the segment
	isRetired   bool   // see Arrangement.Segments
}

// AddSegment adds the segment that growth describes and returns its ordinal. The caller must have
// mapped the segment at address. The address affects placement only with AddressOrder.
//
// Errors: ErrSize, ErrAddress, *OutOfMemoryError if Capacity would be exceeded, ErrExhausted.
func (c *Core) AddSegment(growth Growth, address uint64) (int32, error) {
	c.mergeLastFreed()
	c.reports.clear()
	bytes, indexID := growth.Bytes, growth.indexID
	ordinal := int32(len(c.segments))
	if bytes < max(1, growth.minBytes) || bytes > MaxSize || bytes%Unit != 0 ||
		int(indexID) >= len(c.indexes) {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrSize)
	}
	if limit := c.config.Capacity; limit > 0 && bytes > limit-c.mappedBytes {
		return 0, c.newOutOfMemoryError(bytes, indexID)
	}
	base, err := c.segmentBase(bytes, address)
	if err != nil {
		return 0, err
	}
	c.arenaEnd += uint64(bytes) >> unitShift
	c.mappedBytes += bytes
	c.counts.segmentCount++
	c.counts.peakMappedBytes = max(c.counts.peakMappedBytes, c.mappedBytes)
	owner := c.numberOfIndex(indexID)
	regionID := c.createRegion(base, uint64(bytes)>>unitShift, indexID, owner, ordinal)
	if growth.isReserved {
		_, end := c.regionBounds(regionID)
		c.regions[regionID].reserveUpTo(end)
	}
	c.segments = append(c.segments, segment{
		base: base, bytes: bytes, address: address, indexID: indexID, firstRegion: regionID,
	})
	return ordinal, nil
}

// View describes a block in any state. Handle is 0 if the block is free.
type View struct {
	Block
	State  State
	Stream Stream // stream that owns the block's memory
	Pins   int32  // calls of Pin without an Unpin
}

// Blocks yields all blocks of a segment in the order of their offsets. The Core must not change
// during the iteration.
func (c *Core) Blocks(ordinal int32) iter.Seq[View] {
	c.mergeLastFreed()
	return func(yield func(View) bool) {
		for id := range c.blocksOf(ordinal) {
			if !yield(c.stateView(id)) {
				return
			}
		}
	}
}

// Trim removes segments without allocated blocks, newest first, and returns them, so that the
// caller can unmap them. It keeps at least minMappedBytes mapped. The returned slice is valid
// until the next change of the Core.
func (c *Core) Trim(minMappedBytes int64) []Segment {
	c.mergeLastFreed()
	c.reports.clear()
	for ordinal := len(c.segments) - 1; ordinal >= 0; ordinal-- {
		s := &c.segments[ordinal]
		if s.bytes == 0 || c.mappedBytes-s.bytes < minMappedBytes || !c.isSegmentFree(s) {
			continue
		}
		c.reports.hasEntries = true
		c.reports.trimmed = append(c.reports.trimmed, c.segmentView(int32(ordinal)))
		c.dropRegions(s.firstRegion)
		c.mappedBytes -= s.bytes
		c.counts.segmentCount--
		*s = segment{indexID: s.indexID}
	}
	return c.reports.trimmed
}

// Inventory lists all segments, and the blocks that are live or pinned. It returns ErrDeferred if
// the Core has deferred blocks.
func (c *Core) Inventory() (Inventory, error) {
	c.mergeLastFreed()
	var inventory Inventory
	streamNumbers := map[Stream]uint32{0: 0} // see HeldBlock.Stream
	for ordinal := range c.segments {
		s := &c.segments[ordinal]
		if s.bytes == 0 || s.isRetired {
			inventory.Segments = append(inventory.Segments, Extent{})
			continue
		}
		inventory.Segments = append(inventory.Segments, Extent{s.bytes, isSmallIndex(s.indexID)})
		for v := range c.Blocks(int32(ordinal)) {
			switch {
			case v.State == Free, v.State == Parked && v.Pins == 0:
				continue
			case v.State == Deferred:
				return Inventory{}, fmt.Errorf("listing blocks: %w", ErrDeferred)
			}
			held := HeldBlock{
				Range: fullRange(v.Block, c.fullRanges), Live: v.State == Live, Pinned: v.Pins > 0,
			}
			if held.Live {
				if _, isKnown := streamNumbers[v.Stream]; !isKnown {
					streamNumbers[v.Stream] = uint32(len(streamNumbers))
				}
				held.Stream = streamNumbers[v.Stream]
			}
			inventory.Blocks = append(inventory.Blocks, held)
		}
	}
	return inventory, nil
}

// Rebuild changes the layout to an Arrangement from CommonLayout. Live and pinned blocks keep
// their positions and handles. A span (2 MiB of a segment) with a live block belongs to this
// block's stream. All other memory is clean and belongs to stream 0. Streams get new numbers.
//
// The caller must first wait for each stream and call StreamCompleted. Rebuild returns segments
// that are retired and have no blocks. It has removed them, and the caller can unmap them.
//
// Error: ErrDeferred if there are deferred blocks. The Core is then unchanged.
func (c *Core) Rebuild(arrangement Arrangement) ([]Segment, error) {
	c.mergeLastFreed()
	c.reports.clear()
	if len(c.streamsWithDeferrals()) > 0 {
		return nil, fmt.Errorf("rebuilding the segments: %w", ErrDeferred)
	}
	r := rebuilder{
		placer: &c.placer, streams: &c.streamTable, uses: &c.useTable, keptRanges: arrangement.KeptRanges,
		oldFullRanges: c.fullRanges, newFullRanges: map[uint32]Range{},
	}
	held := r.dropAllButHeld(len(arrangement.Segments))
	var unusedSegments []Segment
	c.hasKeptMemory = len(arrangement.KeptRanges) > 0
	for ordinal, extent := range arrangement.Segments {
		switch r.rebuildSegment(int32(ordinal), extent, held[ordinal]) {
		case segmentAbsent, segmentUsable:
		case segmentRetired:
			c.hasKeptMemory = true
		case segmentEmpty:
			unusedSegments = append(unusedSegments, c.segmentView(int32(ordinal)))
			c.segments[ordinal] = segment{}
		}
	}
	c.fullRanges = r.newFullRanges
	c.counts.peakMappedBytes = max(c.counts.peakMappedBytes, c.mappedBytes)
	return unusedSegments, nil
}

// HasKeptMemory reports whether the latest Rebuild kept ranges or left retired segments mapped,
// which another Rebuild can free.
func (c *Core) HasKeptMemory() bool { return c.hasKeptMemory }
