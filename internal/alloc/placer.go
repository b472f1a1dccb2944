package alloc

import "fmt"

// placer chooses free blocks for requests and counts memory.
type placer struct {
	layout
	config      Config
	isGeometric bool   // whether config.Sizing is Geometric
	arenaEnd    uint64 // position after the last segment, in units (see Unit)
	mappedBytes int64  // sum of the sizes of all segments
	counts      counts
	freeCount   uint64 // number of blocks that have become free so far
	lastOwner   uint32 // see Core.Owner

	// The following fields describe the latest Alloc and Free. Free leaves its block in lastFreed,
	// outside the indexes. A later call either allocates the block again or merges it with its
	// neighbors; see last_freed.go.

	lastAllocated        uint32 // id of the block; 0 if the latest call was not an Alloc
	lastAllocatedUnits   uint64 // size of lastAllocated
	lastAllocatedIndex   uint32 // index from which lastAllocated came
	lastFreed            uint32 // id of the block; 0 if the block has been merged
	lastFreedIndex       uint32 // index to which lastFreed will be added
	isLastAllocatedFreed bool   // whether lastFreed was freed right after its Alloc
	lastFreedNeighbors   neighborStates
}

// makeLive makes a block live that is in no index. size is the requested number of bytes.
func (p *placer) makeLive(id uint32, size int64) Block {
	b := &p.blocks[id]
	b.packed = uint64(Live) | uint64(size)<<requestedShift
	region := p.regionOf(b)
	view := region.blockView(b, id)
	p.lastOwner = region.owner
	if end := b.position() + b.units(); end > region.dirtyEnd {
		region.dirtyEnd = end // the memory is no longer clean
	}

	p.counts.liveCount++
	p.counts.requestedBytes += size
	usedBytes := p.counts.usedBytes + view.Size
	p.counts.usedBytes = usedBytes
	if usedBytes > p.counts.peakUsedBytes {
		p.counts.peakUsedBytes = usedBytes
	}

	return view
}

// findBlock merges lastFreed with its neighbors and adds it to its index. It returns the best free
// block for a request and the block's size in units, or 0 and 0.
//
// If lastFreed belongs to the searched index, findBlock searches before the merge, because that is
// faster. It searches again if the merge can have changed the result.
func (p *placer) findBlock(
	index *sizeIndex, units uint64, indexID uint32,
) (id uint32, foundUnits uint64) {
	if p.lastFreed != 0 && p.lastFreedIndex != indexID {
		p.mergeLastFreedInto(p.indexes[p.lastFreedIndex])
	}

	if index == nil {
		return 0, 0
	}

	id, foundUnits = p.findInIndex(index, units)
	if p.lastFreed != 0 {
		mergedUnits := p.mergeLastFreedInto(index)
		b := &p.blocks[id]
		// The differences are unsigned. They wrap around to large values for blocks that are too
		// small.
		isMergedBetter := mergedUnits-units <= foundUnits-units
		// The merge can have changed the found block, or there is none, and record 0 is not Free.
		isFoundGone := b.units() != foundUnits || b.state() != Free
		if isMergedBetter || isFoundGone {
			id, foundUnits = p.findInIndex(index, units)
		}
	}

	return id, foundUnits
}

// takeFront takes the first units of a free block, which has foundUnits, out of the index. It
// returns the id of the taken block. The rest stays free and keeps the id. If the block is not to
// be split, takeFront takes all of it.
func (p *placer) takeFront(index *sizeIndex, id uint32, units, foundUnits uint64) uint32 {
	restUnits := foundUnits - units
	// Geometric sizing splits at each unit; the check of isGeometric only saves a call.
	shouldSplit := restUnits > 0 && (p.isGeometric ||
		p.config.shouldSplit(int64(units)<<unitShift, int64(restUnits)<<unitShift))
	if !shouldSplit {
		p.removeBlock(index, &p.blocks[id], foundUnits)
		return id
	}

	frontID := p.newBlock()
	b, frontBlock := &p.blocks[id], &p.blocks[frontID] // after newBlock, which can move the records
	frontBlock.positionAndRegion = b.positionAndRegion
	frontBlock.unitsAndPrev = units << idBits // linkAfter sets the part for prev
	frontBlock.next = id
	p.linkAfter(frontBlock, b.prev(), frontID)
	b.setPrev(frontID)
	restPosition := b.positionAndRegion + units<<idBits // the region stays the same
	isResizable := foundUnits > exactBins               // in the part of the index for large blocks
	if isResizable && p.tryResizeInPlace(index, b, id, restPosition, restUnits) {
		return frontID
	}

	p.removeBlock(index, b, foundUnits)
	b.setRange(restPosition, restUnits)
	p.insertBlock(index, b, id, restUnits)
	return frontID
}

// tryReserve reserves the first units of the best free block of an index. It returns false if no
// block is large enough. Reserved memory stays with its stream.
func (p *placer) tryReserve(units uint64, indexID uint32) bool {
	id, _ := p.findBlock(p.indexes[indexID], units, indexID)
	if id == 0 {
		return false
	}

	b := &p.blocks[id]
	p.regionOf(b).reserveUpTo(b.position() + units)
	return true
}

// newOutOfMemoryError returns the error for a request of size bytes. indexID is one of the two
// indexes of the requesting stream.
func (p *placer) newOutOfMemoryError(size int64, indexID uint32) error {
	e := &OutOfMemoryError{Requested: size, Capacity: p.config.Capacity}
	largeIndex, smallIndex := indexID&^1, indexID|1
	for _, id := range [2]uint32{largeIndex, smallIndex} {
		if index := p.indexes[id]; index != nil {
			e.Free += p.freeBytes(index)
			e.LargestFree = max(e.LargestFree, p.largestBlock(index))
		}
	}

	return e
}

// makeFree makes a block free and merges it with free neighbors.
func (p *placer) makeFree(b *block, id uint32) {
	p.invalidateHandle(b)
	p.mergeBlock(p.indexes[p.indexIDOf(b)], b, id, p.neighborStates(b))
}

// invalidateHandle makes the handle of a live, parked or deferred block invalid and subtracts the
// block from the counts. The caller must then add the block to an index or to lastFreed.
func (p *placer) invalidateHandle(b *block) {
	p.counts.usedBytes -= b.size()
	p.counts.requestedBytes -= b.requested()
	p.freeCount++
	b.generation++
	b.packed = uint64(unusedRecord)
}

// createRegion creates a region, a part of a segment that belongs to one stream, and returns its
// id. The region consists of one free block. base is its position in the arena, and ordinal
// identifies the segment. owner is the number of the stream that owns indexID.
func (p *placer) createRegion(base, units uint64, indexID, owner uint32, ordinal int32) uint32 {
	regionID, blockID, sentinelID := p.newRegion(), p.newBlock(), p.newBlock()
	p.regions[regionID] = region{
		origin:      base,
		dirtyEnd:    base, // no memory has been allocated yet
		reservedEnd: base, // no memory is reserved
		ordinal:     ordinal,
		indexID:     indexID,
		sentinel:    sentinelID,
		owner:       owner,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}

	// The sentinel, a record without memory, starts and ends the circular list of blocks.
	b, sentinel := &p.blocks[blockID], &p.blocks[sentinelID]
	b.positionAndRegion = base<<idBits | uint64(regionID)
	b.unitsAndPrev = units<<idBits | uint64(sentinelID)
	b.next = sentinelID
	sentinel.packed = uint64(unusedRecord)
	sentinel.unitsAndPrev = uint64(blockID) // 0 units
	sentinel.next = blockID
	p.insertBlock(p.indexes[indexID], b, blockID, units)
	return regionID
}

// segmentBase returns the position of a new segment in the arena. With CreationOrder, this is the
// end of the arena. With AddressOrder, it is the address in units.
func (p *placer) segmentBase(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	hasBlockIDs := len(p.blocks)+1 < maxBlocks // the segment needs two: a block and a sentinel
	hasRegionID := len(p.regions) < maxBlocks
	if p.arenaEnd+units > maxPosition || !hasBlockIDs || !hasRegionID {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrExhausted)
	}

	if p.config.Policy == CreationOrder {
		return p.arenaEnd, nil
	}

	if address%Unit != 0 || address>>unitShift+units > maxPosition {
		return 0, fmt.Errorf("adding a segment at %#x: %w", address, ErrAddress)
	}

	return address >> unitShift, nil
}

// isSegmentFree reports whether each region of a segment consists of one free block.
func (p *placer) isSegmentFree(s *segment) bool {
	for regionID := s.firstRegion; regionID != 0; regionID = p.regions[regionID].next {
		if _, isFree := p.firstBlock(regionID); !isFree {
			return false
		}
	}

	return true
}

// dropRegions drops a region and the later regions of its segment. Each must consist of one free
// block.
func (p *placer) dropRegions(regionID uint32) {
	for regionID != 0 {
		region := p.regions[regionID] // a copy, because dropRegion clears the record
		blockID, _ := p.firstBlock(regionID)
		p.removeBlock(p.indexes[region.indexID], &p.blocks[blockID], p.blocks[blockID].units())
		p.dropBlock(&p.blocks[blockID], blockID)
		p.dropBlock(&p.blocks[region.sentinel], region.sentinel)
		p.dropRegion(regionID)
		regionID = region.next
	}
}
