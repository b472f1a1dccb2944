package alloc

import (
	"fmt"
	"iter"
)

// Segment describes a range of mapped memory.
type Segment struct {
	Ordinal int32 // position in the order of creation, from 0; never reused
	Bytes   int64
	Address uint64 // as passed to AddSegment
	Stream  Stream // stream for which the segment was mapped
}

type segment struct {
	base        uint64 // position in the arena (see placer.segmentBase), in units
	bytes       int64  // 0 once Trim or Rebuild has removed the segment
	address     uint64 // see Segment
	indexID     uint32 // id of an index of the stream for which the segment was mapped
	firstRegion uint32 // id of the first region; 0 once Trim or Rebuild has removed the segment
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
	minBytes := max(1, growth.minBytes)
	isSizeValid := bytes >= minBytes && bytes <= MaxSize && bytes%Unit == 0
	isFromOtherCore := int(indexID) >= len(c.indexes)
	if !isSizeValid || isFromOtherCore {
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

// View describes a block in any state. Its Handle is 0 if the block is free.
type View struct {
	Block
	State  State
	Stream Stream // stream that owns the block's memory
	Pins   int32  // number of calls of Pin that no Unpin has undone
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

// Trim removes segments without allocated blocks, newest first. It keeps at least minMappedBytes
// mapped. It returns the removed segments, which the caller can unmap. The returned slice is valid
// until the next change of the Core.
func (c *Core) Trim(minMappedBytes int64) []Segment {
	c.mergeLastFreed()
	c.reports.clear()
	for ordinal := len(c.segments) - 1; ordinal >= 0; ordinal-- {
		s := &c.segments[ordinal]
		isRemoved := s.bytes == 0
		isNeeded := c.mappedBytes-s.bytes < minMappedBytes
		if isRemoved || isNeeded || !c.isSegmentFree(s) {
			continue
		}

		c.reports.hasEntries = true
		c.reports.trimmed = append(c.reports.trimmed, c.segmentView(int32(ordinal)))
		c.dropRegions(s.firstRegion)
		c.mappedBytes -= s.bytes
		c.counts.segmentCount--
		*s = segment{indexID: s.indexID} // stays, because ordinals are not reused
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

		extent := Extent{Bytes: s.bytes, Small: isSmallIndex(s.indexID)}
		inventory.Segments = append(inventory.Segments, extent)
		for v := range c.Blocks(int32(ordinal)) {
			if v.State == Deferred {
				return Inventory{}, fmt.Errorf("listing blocks: %w", ErrDeferred)
			}

			// A block without pins can stay parked because an earlier Rebuild kept it. The Rebuild
			// for which the inventory is made frees it.
			isKeptOnly := v.State == Parked && v.Pins == 0
			if v.State == Free || isKeptOnly {
				continue
			}

			held := HeldBlock{
				Range:  fullRange(v.Block, c.fullRanges), // even if Rebuild has shortened it
				Live:   v.State == Live,
				Pinned: v.Pins > 0,
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

// Rebuild changes the layout to an Arrangement from CommonLayout. Live and pinned blocks keep their
// positions and handles. A span (2 MiB of a segment) with a live block then belongs to this block's
// stream. All other memory belongs to stream 0 and is clean: all streams can take it without
// waiting. Streams get new numbers.
//
// Call Rebuild after waiting for each stream and calling StreamCompleted. Rebuild removes segments
// that are retired and have no blocks. It returns these segments, which the caller can unmap.
//
// Error: ErrDeferred if there are deferred blocks. The Core is then unchanged.
func (c *Core) Rebuild(arrangement Arrangement) ([]Segment, error) {
	c.mergeLastFreed()
	c.reports.clear()
	if len(c.streamsWithDeferrals()) > 0 {
		return nil, fmt.Errorf("rebuilding the segments: %w", ErrDeferred)
	}

	r := rebuilder{
		placer:        &c.placer,
		streams:       &c.streamTable,
		uses:          &c.useTable,
		keptRanges:    arrangement.KeptRanges,
		oldFullRanges: c.fullRanges,
		newFullRanges: map[uint32]Range{},
	}
	held := r.dropAllButHeld(len(arrangement.Segments)) // live and pinned blocks, by ordinal
	var unusedSegments []Segment
	c.hasKeptMemory = len(arrangement.KeptRanges) > 0
	for ordinal, extent := range arrangement.Segments {
		switch r.rebuildSegment(int32(ordinal), extent, held[ordinal]) {
		case segmentAbsent, segmentUsable: // nothing to unmap now or later
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
