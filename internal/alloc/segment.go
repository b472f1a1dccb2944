package alloc

import (
	"fmt"
	"iter"
)

// Segment describes a range of memory that the caller has mapped.
type Segment struct {
	Ordinal int32 // position in the order of creation, from 0; never reused
	Bytes   int64
	Address uint64 // as passed to AddSegment
	Stream  Stream // stream for which the segment was mapped
}

// segment is the record of a segment. Records of removed segments stay, with 0 bytes.
type segment struct {
	base        uint64 // position of the first unit; see placer.placeSegment
	bytes       int64
	address     uint64
	indexID     uint32 // id of the free-block index for which the segment was mapped
	firstRegion uint32 // id of the first region, or 0
	isRetired   bool   // set by Rebuild; a retired segment serves no more requests
}

// AddSegment adds a segment that the caller has mapped for growth, and returns its ordinal. The
// address affects placement only with AddressOrder.
//
// Errors: ErrSize, ErrAddress, *OutOfMemoryError if Capacity would be exceeded, ErrExhausted.
func (c *Core) AddSegment(growth Growth, address uint64) (int32, error) {
	c.mergeLastFreed()
	c.reports.clear()
	bytes, indexID := growth.Bytes, growth.indexID
	ordinal := int32(len(c.segments))
	isLargeEnough := bytes > 0 && bytes >= growth.minBytes
	isUnknownIndex := int(indexID) >= len(c.indexes)
	if !isLargeEnough || bytes > MaxSize || bytes%Unit != 0 || isUnknownIndex {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrSize)
	}

	limit := c.config.Capacity
	hasLimit := limit > 0
	if hasLimit && bytes > limit-c.mappedBytes {
		return 0, c.newOutOfMemoryError(bytes, indexID)
	}

	base, err := c.placeSegment(bytes, address)
	if err != nil {
		return 0, err
	}

	c.addedUnits += uint64(bytes) >> unitShift
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
	Stream Stream // stream that owns the memory
	Pins   int32  // calls of Pin minus calls of Unpin
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

func (l *lifetimes) stateView(id uint32) View {
	b := &l.blocks[id]
	view := View{
		Block:  l.blockView(id),
		State:  b.state(),
		Stream: l.ownerOf(b).name,
		Pins:   l.rareFields[id].pins,
	}
	if b.state() == Free {
		view.Handle = 0
	}

	return view
}

// Trim removes segments without allocated blocks, newest first. At least minMappedBytes stay
// mapped. The caller must unmap the returned segments. The slice is valid until the next change of
// the Core.
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
		*s = segment{}
	}

	return c.reports.trimmed
}

func (l *lifetimes) segmentView(ordinal int32) Segment {
	s := &l.segments[ordinal]
	return Segment{
		Ordinal: ordinal,
		Bytes:   s.bytes,
		Address: s.address,
		Stream:  l.nameOfIndex(s.indexID),
	}
}

// Inventory lists all segments and all live or pinned blocks. It returns ErrDeferred if the Core
// has deferred blocks.
func (c *Core) Inventory() (Inventory, error) {
	c.mergeLastFreed()
	var inventory Inventory
	streamNumbers := map[Stream]uint32{0: 0} // see HeldBlock.Stream
	for ordinal := range c.segments {
		extent := c.segments[ordinal].extent()
		inventory.Segments = append(inventory.Segments, extent)
		if !extent.isUsed() {
			continue
		}

		for v := range c.Blocks(int32(ordinal)) {
			if v.State == Deferred {
				return Inventory{}, fmt.Errorf("listing blocks: %w", ErrDeferred)
			}

			isHeld := v.State == Live || v.Pins > 0
			if isHeld {
				inventory.Blocks = append(inventory.Blocks, c.heldBlock(v, streamNumbers))
			}
		}
	}

	return inventory, nil
}

func (c *Core) heldBlock(v View, streamNumbers map[Stream]uint32) HeldBlock {
	held := HeldBlock{
		Range:  fullRange(v.Block, c.fullRanges),
		Live:   v.State == Live,
		Pinned: v.Pins > 0,
	}
	if held.Live {
		held.Stream = ensureNumber(streamNumbers, v.Stream)
	}

	return held
}

func (s *segment) extent() Extent {
	if s.bytes == 0 || s.isRetired {
		return Extent{}
	}

	return Extent{Bytes: s.bytes, Small: isSmallIndex(s.indexID)}
}

func ensureNumber(numbers map[Stream]uint32, stream Stream) uint32 {
	number, isKnown := numbers[stream]
	if !isKnown {
		number = uint32(len(numbers))
		numbers[stream] = number
	}

	return number
}

// Rebuild rearranges the memory according to a result of CommonLayout. Live and pinned blocks keep
// their positions and handles. Before the call, wait for each stream and call StreamCompleted.
//
// Each span of 2 MiB becomes memory of the stream of its live blocks, or of stream 0 if it has no
// live block. Streams get new numbers. The caller must unmap the returned segments, which contain
// no block.
//
// Rebuild returns ErrDeferred, and changes nothing, if the Core has deferred blocks.
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
		case segmentRetired:
			c.hasKeptMemory = true
		case segmentEmpty:
			unusedSegments = append(unusedSegments, c.segmentView(int32(ordinal)))
			c.segments[ordinal] = segment{}
		case segmentAbsent, segmentUsable:
		}
	}

	c.fullRanges = r.newFullRanges
	c.counts.peakMappedBytes = max(c.counts.peakMappedBytes, c.mappedBytes)
	return unusedSegments, nil
}

// HasKeptMemory reports whether the latest Rebuild kept ranges or left retired segments mapped.
// Another Rebuild can free this memory.
func (c *Core) HasKeptMemory() bool { return c.hasKeptMemory }
