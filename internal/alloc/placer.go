package alloc

import "fmt"

// A stream's free blocks are in an index, which finds them by size. Suppose that these are a block
// of 2 MiB and a block of 64 MiB, and that the program requests 1 MiB:
//
//   - findBlock returns the smallest block that is large enough: the one of 2 MiB.
//   - takeFront splits this block. It takes the first 1 MiB. The rest stays free, in the index.
//   - makeLive makes the taken block live, and returns it as a Block for the program.
//
// Free leaves the block in lastFreed, outside the index. If the next call is an Alloc of the same
// size, it can return this block at once. Otherwise, a later call adds the block to the index,
// merged with those of its neighbors that are free: here, with the rest of 1 MiB.
//
// Blocks are in regions. A region is the part of a segment that belongs to one stream. All segments
// together form the arena. Positions in the arena are in units of 512 bytes.

// placer chooses free blocks for requests and counts memory.
type placer struct {
	layout
	config      Config
	isGeometric bool   // whether config.Sizing is Geometric
	arenaEnd    uint64 // position after the last segment
	mappedBytes int64  // sum of the sizes of all segments
	counts      counts
	freeCount   uint64 // increases when a block becomes free, and when Seize takes memory
	lastOwner   uint32 // number of the stream that owns the block of the latest call

	// These fields describe the block of the latest Alloc.
	lastAllocated      uint32 // id of the block, or 0 if a later call has reset it
	lastAllocatedUnits uint64 // requested size
	lastAllocatedIndex uint32 // index for the request

	// These fields describe the block of the latest Free.
	lastFreed            uint32 // id of the block; 0 once the block is live again or in an index
	lastFreedIndex       uint32 // index to which lastFreed will be added
	isLastAllocatedFreed bool   // whether lastFreed was freed right after its Alloc
	lastFreedNeighbors   neighborStates
}

// findBlock returns the best free block for a request and the block's size, or 0 and 0. Afterwards,
// lastFreed is in its index.
//
// If lastFreed belongs to the searched index, findBlock searches before it adds lastFreed, because
// that is faster. It repeats the search if lastFreed can have changed the result.
func (p *placer) findBlock(
	index *sizeIndex, units uint64, indexID uint32,
) (id uint32, foundUnits uint64) {
	if p.lastFreed != 0 && p.lastFreedIndex != indexID {
		p.mergeLastFreedInto(p.indexes[p.lastFreedIndex])
	}

	if index == nil { // the stream has no memory
		return 0, 0
	}

	id, foundUnits = p.findInIndex(index, units)
	if p.lastFreed != 0 {
		mergedUnits := p.mergeLastFreedInto(index)
		b := &p.blocks[id]
		// If a block is too small, the subtraction wraps around to a huge number. If the sizes are equal,
		// the block with the lower position is better, which only a new search finds out.
		canMergedBeBetter := mergedUnits-units <= foundUnits-units
		// If lastFreed was next to the found block, both are now parts of the merged block. If no block
		// was found, b is record 0, which is never Free.
		isFoundGone := b.units() != foundUnits || b.state() != Free
		if canMergedBeBetter || isFoundGone {
			id, foundUnits = p.findInIndex(index, units)
		}
	}

	return id, foundUnits
}

// takeFront takes the first units of a free block out of the index, as a block with the returned
// id. The rest stays free and keeps its id. If the block must not be split, takeFront takes all of
// it. foundUnits is the size of the free block.
func (p *placer) takeFront(index *sizeIndex, id uint32, units, foundUnits uint64) uint32 {
	restUnits := foundUnits - units
	// Geometric sizing permits every split; the check of isGeometric only saves a call.
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
	isLarge := foundUnits > exactBins                   // only large blocks can be resized in place
	if isLarge && p.tryResizeInPlace(index, b, id, restPosition, restUnits) {
		return frontID
	}

	p.removeBlock(index, b, foundUnits)
	b.setRange(restPosition, restUnits)
	p.insertBlock(index, b, id, restUnits)
	return frontID
}

// makeLive makes a block live and returns its description. The block must be in no index. size is
// the requested number of bytes.
func (p *placer) makeLive(id uint32, size int64) Block {
	b := &p.blocks[id]
	b.packed = uint64(Live) | uint64(size)<<requestedShift
	region := p.regionOf(b)
	view := region.blockView(b, id)
	p.lastOwner = region.owner
	if end := b.position() + b.units(); end > region.dirtyEnd {
		region.dirtyEnd = end // above it, memory is clean: no queued work can use it
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

// makeFree makes a live, parked or deferred block free and merges it with free neighbors.
func (p *placer) makeFree(b *block, id uint32) {
	p.invalidateHandle(b)
	p.mergeBlock(p.indexes[p.indexIDOf(b)], b, id, p.neighborStates(b))
}

// invalidateHandle makes the handle of a block invalid and subtracts the block from the counts. The
// caller must then add the block to an index or store it in lastFreed.
func (p *placer) invalidateHandle(b *block) {
	p.counts.usedBytes -= b.size()
	p.counts.requestedBytes -= b.requested()
	p.freeCount++
	b.generation++ // part of the handle
	b.packed = uint64(unusedRecord)
}

// tryReserve reserves the first units of the best free block of an index, which means that this
// memory stays with its stream. It returns false if no block is large enough.
func (p *placer) tryReserve(units uint64, indexID uint32) bool {
	id, _ := p.findBlock(p.indexes[indexID], units, indexID)
	if id == 0 {
		return false
	}

	b := &p.blocks[id]
	p.regionOf(b).reserveUpTo(b.position() + units)
	return true
}

// newOutOfMemoryError returns the error for a request of size bytes. A stream can have two indexes,
// for large and for small requests. indexID is one of them.
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

// segmentBase returns the position of a new segment. With CreationOrder, this is the end of the
// arena. With AddressOrder, it is the address in units.
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

// createRegion creates a region with one free block and returns the region's id. base is the
// region's position. The segment has the given ordinal. owner is the number of the stream to which
// the index belongs.
func (p *placer) createRegion(base, units uint64, indexID, owner uint32, ordinal int32) uint32 {
	regionID, blockID, sentinelID := p.newRegion(), p.newBlock(), p.newBlock()
	p.regions[regionID] = region{
		origin:      base,
		dirtyEnd:    base, // no work can use the memory yet
		reservedEnd: base, // no memory is reserved
		ordinal:     ordinal,
		indexID:     indexID,
		sentinel:    sentinelID,
		owner:       owner,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}

	// The blocks of a region form a circular list. The sentinel, a record without memory, is between
	// the last block and the first.
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
