package alloc

// findBlock merges lastFreed, and returns the best free block for a request and its size. It
// searches before the merge, because the result usually remains the best block.
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
	if p.lastFreed == 0 {
		return id, foundUnits
	}

	mergedUnits := p.mergeLastFreedInto(index)
	b := &p.blocks[id]                                          // if id is 0, b is not Free
	isUnchanged := b.state() == Free && b.units() == foundUnits // not absorbed by the merge
	// The surplus of a block that is too small wraps around to a huge number.
	mergedSurplus, foundSurplus := mergedUnits-units, foundUnits-units
	if isUnchanged && foundSurplus < mergedSurplus {
		return id, foundUnits
	}

	return p.findInIndex(index, units)
}

func (p *placer) mergeLastFreed() {
	p.lastAllocated = 0 // the latest call is no longer an Alloc
	if p.lastFreed != 0 {
		p.mergeLastFreedInto(p.indexes[p.lastFreedIndex])
	}
}

// mergeLastFreedInto adds lastFreed to its index, and returns the merged block's units.
func (p *placer) mergeLastFreedInto(index *sizeIndex) uint64 {
	id := p.lastFreed
	p.lastFreed = 0
	return p.mergeBlock(index, &p.blocks[id], id, p.lastFreedNeighbors)
}

type freeNeighbors struct{ isPrevFree, isNextFree bool }

func (p *placer) freeNeighborsOf(b *block) freeNeighbors {
	return freeNeighbors{p.blocks[b.prev()].state() == Free, p.blocks[b.next].state() == Free}
}

// freeWithoutMerge stores a block without uses or pins in lastFreed. The caller must first merge
// the old lastFreed and then set p.lastFreedNeighbors.
func (p *placer) freeWithoutMerge(b *block, id, indexID uint32) {
	p.counts.liveCount--
	p.endAllocation(b)
	p.isFreedAfterAlloc = id == p.lastAllocated
	p.lastFreed, p.lastFreedIndex, p.lastAllocated = id, indexID, 0
}

// canReuseLastFreed reports whether an Alloc can return lastFreed without a merge. The result would
// be the same with a merge in two cases:
//
//   - The block was freed right after its Alloc, and the new request equals the old one.
//   - The block has the requested size and no free neighbor, and no other free block of the index
//     has this size.
func (p *placer) canReuseLastFreed(units uint64, indexID uint32) bool {
	if p.isFreedAfterAlloc {
		return p.lastAllocatedUnits == units && p.lastAllocatedIndex == indexID
	}

	return p.blocks[p.lastFreed].units() == units && p.hasUniqueSize(indexID, units)
}

// hasUniqueSize checks for the second case. It returns false for sizes above 1 MiB.
func (p *placer) hasUniqueSize(indexID uint32, units uint64) bool {
	return units <= exactBins && p.lastFreedIndex == indexID &&
		p.indexes[indexID].bags[units-1].count == 0 && p.lastFreedNeighbors == freeNeighbors{}
}

// mergeBlock merges a block with its free neighbors, adds the result to the index and returns its
// size in units.
func (l *layout) mergeBlock(
	index *sizeIndex, b *block, id uint32, neighbors freeNeighbors,
) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	prevBlock, nextBlock := &l.blocks[prev], &l.blocks[next]
	hasLargeNeighbor := (prevBlock.unitsAndPrev|nextBlock.unitsAndPrev)>>idBits > exactBins
	if hasLargeNeighbor {
		return l.mergeLargeBlock(index, b, id, neighbors)
	}

	if neighbors.isNextFree {
		addedUnits := nextBlock.units()
		l.removeBlock(index, nextBlock, addedUnits)
		units += addedUnits
		nextID := nextBlock.next
		l.dropBlock(nextBlock, next)
		b.next = nextID
		l.blocks[nextID].setPrev(id)
	}

	if neighbors.isPrevFree {
		addedUnits := prevBlock.units()
		l.removeBlock(index, prevBlock, addedUnits)
		units += addedUnits
		nextID := b.next
		prevBlock.next = nextID
		l.blocks[nextID].setPrev(prev)
		l.dropBlock(b, id)
		b, id = prevBlock, prev
	}

	b.unitsAndPrev = units<<idBits | b.unitsAndPrev&idMask
	l.insertBlock(index, b, id, units)
	return units
}

// mergeLargeBlock is mergeBlock for neighbors of any size. A free neighbor keeps its record, so
// that the index changes as little as possible.
func (l *layout) mergeLargeBlock(
	index *sizeIndex, b *block, id uint32, neighbors freeNeighbors,
) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	prevBlock, nextBlock := &l.blocks[prev], &l.blocks[next]
	switch {
	case neighbors.isPrevFree:
		units += prevBlock.units()
		nextID := next
		if neighbors.isNextFree {
			addedUnits := nextBlock.units()
			l.removeBlock(index, nextBlock, addedUnits)
			units += addedUnits
			nextID = nextBlock.next
			l.dropBlock(nextBlock, next)
		}

		prevBlock.next = nextID
		l.blocks[nextID].setPrev(prev)
		l.dropBlock(b, id)
		l.moveInIndex(index, prevBlock, prev, prevBlock.positionAndRegion, units)
	case neighbors.isNextFree:
		units += nextBlock.units()
		l.linkAfter(nextBlock, next, prev)
		l.dropBlock(b, id)
		l.moveInIndex(index, nextBlock, next, b.positionAndRegion, units)
	default:
		l.insertBlock(index, b, id, units)
	}

	return units
}

func (l *layout) linkAfter(b *block, id, prev uint32) {
	b.setPrev(prev)
	l.blocks[prev].next = id
}
