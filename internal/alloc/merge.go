package alloc

// mergeBlock merges a free block with its free neighbors, adds the result to the index, and returns
// its size in units.
func (l *layout) mergeBlock(index *sizeIndex, b *block, id uint32, states neighborStates) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	p, n := &l.blocks[prev], &l.blocks[next]
	if (p.unitsAndPrev|n.unitsAndPrev)>>idBits > exactBins {
		return l.mergeLargeBlock(index, b, id, states)
	}
	if states.isNextFree {
		added := n.units()
		l.removeBlock(index, n, added)
		units += added
		after := n.next
		l.dropBlock(n, next)
		b.next = after
		l.blocks[after].setPrev(id)
	}
	if states.isPrevFree {
		added := p.units()
		l.removeBlock(index, p, added)
		units += added
		after := b.next
		p.next = after
		l.blocks[after].setPrev(prev)
		l.dropBlock(b, id)
		b, id = p, prev
	}
	b.unitsAndPrev = units<<idBits | b.unitsAndPrev&idMask
	l.insertBlock(index, b, id, units)
	return units
}

// mergeLargeBlock is like mergeBlock, for neighbors of any size. The result keeps the record of a
// free neighbor, so that the index changes as little as possible.
func (l *layout) mergeLargeBlock(
	index *sizeIndex, b *block, id uint32, states neighborStates,
) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	p, n := &l.blocks[prev], &l.blocks[next]
	switch {
	case states.isPrevFree:
		units += p.units()
		after := next
		if states.isNextFree {
			added := n.units()
			l.removeBlock(index, n, added)
			units += added
			after = n.next
			l.dropBlock(n, next)
		}
		p.next = after
		l.blocks[after].setPrev(prev)
		l.dropBlock(b, id)
		l.moveInIndex(index, p, prev, p.positionAndRegion, units)
	case states.isNextFree:
		units += n.units()
		l.linkAfter(n, prev, next)
		l.dropBlock(b, id)
		l.moveInIndex(index, n, next, b.positionAndRegion, units)
	default:
		l.insertBlock(index, b, id, units)
	}
	return units
}

func (l *layout) linkAfter(b *block, prev, id uint32) {
	b.setPrev(prev)
	l.blocks[prev].next = id
}
