package alloc

// Free stores the block in lastFreed. The next call merges it with its neighbors and adds it to an
// index. In two cases, an Alloc returns it without a merge, which would lead to the same block:
//
//   - The block was freed right after its Alloc, and the new request equals the old one.
//   - The block has the requested size and no free neighbor, and no other free block of the index
//     has this size.

// findBlock returns the best free block for a request, and its size. It also merges lastFreed.
// Usually, the block that it finds before this merge stays the best.
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
	b := &p.blocks[id]                                          // record 0 is never Free
	isUnchanged := b.state() == Free && b.units() == foundUnits // not absorbed by the merge
	// If a block is too small, its surplus wraps around to a huge number.
	mergedSurplus, foundSurplus := mergedUnits-units, foundUnits-units
	if isUnchanged && foundSurplus < mergedSurplus {
		return id, foundUnits
	}

	return p.findInIndex(index, units)
}

func (p *placer) mergeLastFreed() {
	p.lastAllocated = 0
	if p.lastFreed != 0 {
		p.mergeLastFreedInto(p.indexes[p.lastFreedIndex])
	}
}

// mergeLastFreedInto returns the size of the merged block in units.
func (p *placer) mergeLastFreedInto(index *sizeIndex) uint64 {
	id := p.lastFreed
	p.lastFreed = 0
	return p.mergeBlock(index, &p.blocks[id], id, p.lastFreedNeighbors)
}

type neighborStates struct{ isPrevFree, isNextFree bool }

func (p *placer) neighborStates(b *block) neighborStates {
	return neighborStates{p.blocks[b.prev()].state() == Free, p.blocks[b.next].state() == Free}
}

// freeWithoutMerge is for blocks without uses or pins. The caller must first merge the old
// lastFreed and then set p.lastFreedNeighbors.
func (p *placer) freeWithoutMerge(b *block, id, indexID uint32) {
	p.counts.liveCount--
	p.invalidateHandle(b)
	p.isFreedAfterAlloc = id == p.lastAllocated
	p.lastFreed, p.lastFreedIndex, p.lastAllocated = id, indexID, 0
}

func (p *placer) canReuseLastFreed(units uint64, indexID uint32) bool {
	if p.isFreedAfterAlloc {
		return p.lastAllocatedUnits == units && p.lastAllocatedIndex == indexID
	}

	return p.blocks[p.lastFreed].units() == units && p.isOnlyOfItsSize(indexID, units)
}

// isOnlyOfItsSize reports whether lastFreed would be the index's only free block of its size.
func (p *placer) isOnlyOfItsSize(indexID uint32, units uint64) bool {
	return units <= exactBins && p.lastFreedIndex == indexID &&
		p.indexes[indexID].bags[units-1].count == 0 && p.lastFreedNeighbors == neighborStates{}
}

// mergeBlock merges a block with its free neighbors, adds the result to the index and returns its
// size in units.
func (l *layout) mergeBlock(index *sizeIndex, b *block, id uint32, states neighborStates) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	prevBlock, nextBlock := &l.blocks[prev], &l.blocks[next]
	if (prevBlock.unitsAndPrev|nextBlock.unitsAndPrev)>>idBits > exactBins {
		return l.mergeLargeBlock(index, b, id, states)
	}

	if states.isNextFree {
		addedUnits := nextBlock.units()
		l.removeBlock(index, nextBlock, addedUnits)
		units += addedUnits
		nextID := nextBlock.next
		l.dropBlock(nextBlock, next)
		b.next = nextID
		l.blocks[nextID].setPrev(id)
	}

	if states.isPrevFree {
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

// mergeLargeBlock is like mergeBlock, for neighbors of any size. The result keeps a free neighbor's
// record, to change the index as little as possible.
func (l *layout) mergeLargeBlock(
	index *sizeIndex, b *block, id uint32, states neighborStates,
) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	prevBlock, nextBlock := &l.blocks[prev], &l.blocks[next]
	switch {
	case states.isPrevFree:
		units += prevBlock.units()
		nextID := next
		if states.isNextFree {
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
	case states.isNextFree:
		units += nextBlock.units()
		l.linkAfter(nextBlock, prev, next)
		l.dropBlock(b, id)
		l.moveInIndex(index, nextBlock, next, b.positionAndRegion, units)
	default:
		l.insertBlock(index, b, id, units)
	}

	return units
}

func (l *layout) linkAfter(b *block, prev, id uint32) {
	b.setPrev(prev)
	l.blocks[prev].next = id
}
