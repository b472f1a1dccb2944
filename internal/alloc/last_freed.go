package alloc

// Free stores the block in lastFreed. The next call merges it with its neighbors and adds it to an
// index. In two cases, an Alloc returns it without a merge, which would lead to the same block:
//
//   - The block was freed right after its Alloc, and the new request equals the old one.
//   - The block has the requested size and no free neighbor, and no other free block of the index
//     has this size.

func (p *placer) mergeLastFreed() {
	p.lastAllocated = 0
	if p.lastFreed != 0 {
		p.mergeLastFreedInto(p.indexes[p.lastFreedIndex])
	}
}

// mergeLastFreedInto returns the merged block's size in units.
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
	p.isLastAllocatedFreed = id == p.lastAllocated
	p.lastFreed, p.lastFreedIndex, p.lastAllocated = id, indexID, 0
}

func (p *placer) canReuseLastFreed(units uint64, indexID uint32) bool {
	if p.isLastAllocatedFreed {
		return p.lastAllocatedUnits == units && p.lastAllocatedIndex == indexID
	}

	return p.blocks[p.lastFreed].units() == units && p.isOnlyOfItsSize(indexID, units)
}

// isOnlyOfItsSize reports whether lastFreed would be the index's only free block of its size.
func (p *placer) isOnlyOfItsSize(indexID uint32, units uint64) bool {
	return units <= exactBins && p.lastFreedIndex == indexID &&
		p.indexes[indexID].bags[units-1].count == 0 && p.lastFreedNeighbors == neighborStates{}
}
