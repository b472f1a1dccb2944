package alloc

// mergeBlock indexes the merged block and returns its size in units.
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
