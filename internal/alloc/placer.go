package alloc

import "fmt"

// placer chooses free blocks for requests and counts memory.
type placer struct {
	layout
	config      Config
	isGeometric bool
	arenaEnd    uint64
	mappedBytes int64
	counts      counts
	freeCount   uint64 // blocks that have become free so far
	lastOwner   uint32 // see Core.Owner

	// The latest Alloc and Free; see last_freed.go.

	lastAllocated        uint32 // 0 if the latest call was not an Alloc
	lastAllocatedUnits   uint64
	lastAllocatedIndex   uint32
	lastFreed            uint32 // 0 if the latest call was not a Free
	lastFreedIndex       uint32
	isLastAllocatedFreed bool
	lastFreedNeighbors   neighborStates
}

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

// findBlock returns the best free block for a request, and its size. It merges lastFreed with its
// neighbors. It searches before a merge in the same index, which is faster, and again if the merge
// changes the result.
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
		if mergedUnits-units <= foundUnits-units || b.units() != foundUnits || b.state() != Free {
			id, foundUnits = p.findInIndex(index, units)
		}
	}
	return id, foundUnits
}

// takeFront allocates the front of a free block, whose rest keeps its id.
func (p *placer) takeFront(index *sizeIndex, id uint32, units, foundUnits uint64) uint32 {
	restUnits := foundUnits - units
	if restUnits == 0 || !p.isGeometric &&
		!p.config.shouldSplit(int64(units)<<unitShift, int64(restUnits)<<unitShift) {
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

func (p *placer) makeFree(b *block, id uint32) {
	p.invalidateHandle(b)
	p.mergeBlock(p.indexes[p.indexIDOf(b)], b, id, p.neighborStates(b))
}

func (p *placer) invalidateHandle(b *block) {
	p.counts.usedBytes -= b.size()
	p.counts.requestedBytes -= b.requested()
	p.freeCount++
	b.generation++
	b.packed = uint64(unusedRecord)
}

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
