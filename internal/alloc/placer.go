package alloc

import "fmt"

// placer chooses free blocks for requests and counts memory.
type placer struct {
	layout
	config      Config
	isGeometric bool   // whether config.Sizing is Geometric
	arenaEnd    uint64 // position after the last segment, in units
	mappedBytes int64
	counts      counts
	freeCount   uint64 // number of blocks that have become free so far
	lastOwner   uint32 // see Core.Owner

	// The following fields describe the latest Alloc and Free; see last_freed.go.

	lastAllocated        uint32 // 0 if the latest call was not an Alloc
	lastAllocatedUnits   uint64
	lastAllocatedIndex   uint32
	lastFreed            uint32 // 0 if the latest call was not a Free
	lastFreedIndex       uint32
	isLastAllocatedFreed bool
	lastFreedNeighbors   neighborStates
}

// makeLive allocates a block that is in no index, for a request of size bytes.
func (p *placer) makeLive(id uint32, size int64) Block {
	b := &p.blocks[id]
	b.packed = uint64(Live) | uint64(size)<<requestedShift
	region := p.regionOf(b)
	view := region.blockView(b, id)
	p.lastOwner = region.owner
	if end := b.position() + b.units(); end > region.dirtyEnd {
		region.dirtyEnd = end
	}
	p.counts.liveCount++
	p.counts.requestedBytes += size
	used := p.counts.usedBytes + view.Size
	p.counts.usedBytes = used
	if used > p.counts.peakUsedBytes {
		p.counts.peakUsedBytes = used
	}
	return view
}

// findBlock returns the best free block for a request and the size of the block in units, or 0 and
// 0. It also merges lastFreed with its neighbors. If lastFreed is in the same index, it searches
// before the merge, which is faster, and again if the merge may have changed the result.
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
		// The unsigned differences are large for blocks that are too small.
		isMergedBetter := mergedUnits-units <= foundUnits-units
		if isMergedBetter || b.units() != foundUnits || b.state() != Free {
			id, foundUnits = p.findInIndex(index, units)
		}
	}
	return id, foundUnits
}

// takeFront removes the front of a free block from the index and returns its id. The rest of the
// block stays free and keeps its id. If the block is not split, takeFront removes all of it.
func (p *placer) takeFront(index *sizeIndex, id uint32, units, foundUnits uint64) uint32 {
	restUnits := foundUnits - units
	shouldSplit := restUnits > 0 && (p.isGeometric ||
		p.config.shouldSplit(int64(units)<<unitShift, int64(restUnits)<<unitShift))
	if !shouldSplit {
		p.removeBlock(index, &p.blocks[id], foundUnits)
		return id
	}
	frontID := p.newBlock()
	b, frontBlock := &p.blocks[id], &p.blocks[frontID]
	prev, positionAndRegion := b.prev(), b.positionAndRegion
	frontBlock.positionAndRegion = positionAndRegion
	frontBlock.unitsAndPrev, frontBlock.next = units<<idBits, id
	p.linkAfter(frontBlock, prev, frontID)
	b.setPrev(frontID)
	positionAndRegion += units << idBits
	if foundUnits > exactBins && p.tryResizeInPlace(index, b, id, positionAndRegion, restUnits) {
		return frontID
	}
	p.removeBlock(index, b, foundUnits)
	b.setRange(positionAndRegion, restUnits)
	p.insertBlock(index, b, id, restUnits)
	return frontID
}

// tryReserve reserves the best free block of an index, and reports whether there is one.
func (p *placer) tryReserve(units uint64, indexID uint32) bool {
	id, _ := p.findBlock(p.indexes[indexID], units, indexID)
	if id == 0 {
		return false
	}
	b := &p.blocks[id]
	p.regionOf(b).reserveUpTo(b.position() + units)
	return true
}

func (p *placer) newOutOfMemoryError(size int64, indexID uint32) error {
	e := &OutOfMemoryError{Requested: size, Capacity: p.config.Capacity}
	for _, id := range [2]uint32{indexID &^ 1, indexID | 1} { // the two indexes of the stream
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

// invalidateHandle ends the use of a block's record by a live, parked or deferred block.
func (p *placer) invalidateHandle(b *block) {
	p.counts.usedBytes -= b.size()
	p.counts.requestedBytes -= b.requested()
	p.freeCount++
	b.generation++
	b.packed = uint64(unusedRecord)
}

// createRegion creates a region that consists of one free block, and returns its id.
func (p *placer) createRegion(base, units uint64, indexID, owner uint32, ordinal int32) uint32 {
	regionID, blockID, sentinelID := p.newRegion(), p.newBlock(), p.newBlock()
	p.regions[regionID] = region{
		origin: base, dirtyEnd: base, reservedEnd: base,
		ordinal: ordinal, indexID: indexID, sentinel: sentinelID, owner: owner,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}
	b, sentinel := &p.blocks[blockID], &p.blocks[sentinelID]
	b.positionAndRegion = base<<idBits | uint64(regionID)
	b.unitsAndPrev, b.next = units<<idBits|uint64(sentinelID), sentinelID
	sentinel.packed = uint64(unusedRecord)
	sentinel.unitsAndPrev, sentinel.next = uint64(blockID), blockID
	p.insertBlock(p.indexes[indexID], b, blockID, units)
	return regionID
}

// segmentBase returns the position of a new segment in the arena.
func (p *placer) segmentBase(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	switch {
	case p.arenaEnd+units > maxPosition || len(p.blocks)+1 >= maxBlocks || len(p.regions) >= maxBlocks:
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrExhausted)
	case p.config.Policy == CreationOrder:
		return p.arenaEnd, nil
	case address%Unit != 0 || address>>unitShift+units > maxPosition:
		return 0, fmt.Errorf("adding a segment at %#x: %w", address, ErrAddress)
	}
	return address >> unitShift, nil
}

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
		region := p.regions[regionID]
		blockID, _ := p.firstBlock(regionID)
		p.removeBlock(p.indexes[region.indexID], &p.blocks[blockID], p.blocks[blockID].units())
		p.dropBlock(&p.blocks[blockID], blockID)
		p.dropBlock(&p.blocks[region.sentinel], region.sentinel)
		p.dropRegion(regionID)
		regionID = region.next
	}
}
