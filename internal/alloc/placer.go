package alloc

import "fmt"

// placer chooses free blocks for requests and counts memory. Each stream has two indexes of free
// blocks, for large and small requests. The latest freed block is not yet in an index, because the
// next Alloc often reuses it. Positions count units of 512 bytes across all segments.
type placer struct {
	layout
	config      Config
	isGeometric bool   // whether config.Sizing is Geometric
	addedUnits  uint64 // sum of the sizes of all segments so far
	mappedBytes int64  // sum of the sizes of all mapped segments
	counts      counts
	freeCount   uint64 // number of frees and of calls of Seize so far
	lastOwner   uint32 // result of Core.Owner

	// The latest Alloc. Later calls reset lastAllocated.
	lastAllocated      uint32 // block id, or 0
	lastAllocatedUnits uint64 // requested size
	lastAllocatedIndex uint32 // id of the index for the request

	// The latest Free. lastFreed is 0 once the block is live again or in an index.
	lastFreed          uint32 // block id, or 0
	lastFreedIndex     uint32 // id of the index that the block will enter
	lastFreedNeighbors freeNeighbors
	isFreedAfterAlloc  bool // lastFreed was freed right after its Alloc
}

// takeFront splits the first units off a free block of foundUnits, and returns the id of the new
// block. The rest keeps its id and stays in the index. If the block must not be split, takeFront
// removes it from the index.
func (p *placer) takeFront(index *sizeIndex, id uint32, units, foundUnits uint64) uint32 {
	restUnits := foundUnits - units
	// With isGeometric, config.shouldSplit would return true.
	isSplit := restUnits > 0 && (p.isGeometric ||
		p.config.shouldSplit(int64(units)<<unitShift, int64(restUnits)<<unitShift))
	if !isSplit {
		p.removeBlock(index, &p.blocks[id], foundUnits)
		return id
	}

	frontID := p.newBlock()
	b, frontBlock := &p.blocks[id], &p.blocks[frontID] // after newBlock, which can move the records
	frontBlock.positionAndRegion = b.positionAndRegion
	frontBlock.unitsAndPrev = units << idBits // without prev
	frontBlock.next = id
	p.linkAfter(frontBlock, frontID, b.prev())
	b.setPrev(frontID)
	restPosition := b.positionAndRegion + (units << idBits) // in the same region
	hasClass := foundUnits > exactBins
	if hasClass && p.tryResizeInPlace(index, b, id, restPosition, restUnits) {
		return frontID
	}

	p.removeBlock(index, b, foundUnits)
	b.setRange(restPosition, restUnits)
	p.insertBlock(index, b, id, restUnits)
	return frontID
}

// makeLive allocates a block that is in no index.
func (p *placer) makeLive(id uint32, requestedBytes int64) Block {
	b := &p.blocks[id]
	b.packed = uint64(Live) | uint64(requestedBytes)<<valueShift
	region := p.regionOf(b)
	view := region.blockView(b, id)
	p.lastOwner = region.owner
	if end := b.position() + b.units(); end > region.dirtyEnd {
		region.dirtyEnd = end // memory below is no longer clean
	}

	p.counts.liveCount++
	p.counts.requestedBytes += requestedBytes
	usedBytes := p.counts.usedBytes + view.Size
	p.counts.usedBytes = usedBytes
	if usedBytes > p.counts.peakUsedBytes {
		p.counts.peakUsedBytes = usedBytes
	}

	return view
}

// makeFree makes a live, parked or deferred block free and merges it with free neighbors.
func (p *placer) makeFree(b *block, id uint32) {
	p.endAllocation(b)
	p.mergeBlock(p.indexes[p.indexIDOf(b)], b, id, p.freeNeighborsOf(b))
}

// endAllocation ends an allocation. The caller must then add the block to an index or store it
// in lastFreed.
func (p *placer) endAllocation(b *block) {
	p.counts.usedBytes -= b.size()
	p.counts.requestedBytes -= b.requested()
	p.freeCount++
	b.generation++
	b.packed = uint64(noState)
}

// tryReserve reserves the first units of the best free block, and all memory before them in its
// region. It returns false if no block is large enough.
func (p *placer) tryReserve(units uint64, indexID uint32) bool {
	id, _ := p.findBlock(p.indexes[indexID], units, indexID)
	if id == 0 {
		return false
	}

	b := &p.blocks[id]
	p.regionOf(b).reserveUpTo(b.position() + units)
	return true
}

// newOutOfMemoryError reports the free memory of the stream to which an index belongs.
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

// placeSegment returns the position of a new segment: with CreationOrder, the end of the last one;
// with AddressOrder, the address in units.
func (p *placer) placeSegment(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	const newBlocks, newRegions = 2, 1 // a free block, a sentinel, and their region
	hasBlockIDs := len(p.blocks)+newBlocks <= maxIDs
	hasRegionID := len(p.regions)+newRegions <= maxIDs
	if p.addedUnits+units > maxPosition || !hasBlockIDs || !hasRegionID {
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrExhausted)
	}

	if p.config.Policy == CreationOrder {
		return p.addedUnits, nil
	}

	if address%Unit != 0 || address>>unitShift+units > maxPosition {
		return 0, fmt.Errorf("adding a segment at %#x: %w", address, ErrAddress)
	}

	return address >> unitShift, nil
}

// createRegion creates a region of one free block, in the segment with the given ordinal. owner is
// the number of the stream.
func (p *placer) createRegion(base, units uint64, indexID, owner uint32, ordinal int32) uint32 {
	regionID, blockID, sentinelID := p.newRegion(), p.newBlock(), p.newBlock()
	p.regions[regionID] = region{
		origin:      base,
		dirtyEnd:    base, // all memory is clean
		reservedEnd: base, // no memory is reserved
		ordinal:     ordinal,
		indexID:     indexID,
		sentinel:    sentinelID,
		owner:       owner,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}

	// The block and the sentinel form a circular list.
	b, sentinel := &p.blocks[blockID], &p.blocks[sentinelID]
	b.positionAndRegion = base<<idBits | uint64(regionID)
	b.unitsAndPrev = units<<idBits | uint64(sentinelID)
	b.next = sentinelID
	sentinel.packed = uint64(noState)
	sentinel.unitsAndPrev = uint64(blockID) // 0 units
	sentinel.next = blockID
	p.insertBlock(p.indexes[indexID], b, blockID, units)
	return regionID
}

func (p *placer) isSegmentFree(s *segment) bool {
	for regionID := s.firstRegion; regionID != 0; regionID = p.regions[regionID].next {
		if _, isRegionFree := p.firstBlock(regionID); !isRegionFree {
			return false
		}
	}

	return true
}

// dropRegions drops a region and all later regions of the segment. Their memory must be free.
func (p *placer) dropRegions(regionID uint32) {
	for regionID != 0 {
		region := p.regions[regionID] // copy, because dropRegion clears the record
		blockID, _ := p.firstBlock(regionID)
		p.removeBlock(p.indexes[region.indexID], &p.blocks[blockID], p.blocks[blockID].units())
		p.dropBlock(&p.blocks[blockID], blockID)
		p.dropBlock(&p.blocks[region.sentinel], region.sentinel)
		p.dropRegion(regionID)
		regionID = region.next
	}
}
