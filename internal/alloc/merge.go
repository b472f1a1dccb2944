package alloc

// merge merges a block that has just become free with its free neighbors, adds the resulting
// block to the index, and returns its size in units.
func (l *layout) merge(x *index, b *block, id uint32, free neighbors) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	p, n := &l.blocks[prev], &l.blocks[next]
	if (p.span|n.span)>>idBits > exactBins { // true if either is large
		return l.mergeLarge(x, b, id, free)
	}
	if free.next {
		added := n.units()
		l.remove(x, n, added)
		units += added
		after := n.next
		l.drop(n, next)
		b.next = after
		l.blocks[after].setPrev(id)
	}
	if free.prev {
		added := p.units()
		l.remove(x, p, added)
		units += added
		after := b.next
		p.next = after
		l.blocks[after].setPrev(prev)
		l.drop(b, id)
		b, id = p, prev
	}
	b.span = units<<idBits | b.span&idMask
	l.insert(x, b, id, units)
	return units
}

// mergeLarge is like merge, for neighbors of any size. The resulting block keeps the record of a
// free neighbor, so that the index changes as little as possible.
func (l *layout) mergeLarge(x *index, b *block, id uint32, free neighbors) uint64 {
	prev, next, units := b.prev(), b.next, b.units()
	p, n := &l.blocks[prev], &l.blocks[next]
	switch {
	case free.prev:
		units += p.units()
		after := next
		if free.next {
			added := n.units()
			l.remove(x, n, added)
			units += added
			after = n.next
			l.drop(n, next)
		}
		p.next = after
		l.blocks[after].setPrev(prev)
		l.drop(b, id)
		l.reindex(x, p, prev, p.place, units)
	case free.next:
		units += n.units()
		l.follow(n, prev, next)
		l.drop(b, id)
		l.reindex(x, n, next, b.place, units)
	default:
		l.insert(x, b, id, units)
	}
	return units
}

// follow links block b, whose number is id, after prev. prev may be the region's ring.
func (l *layout) follow(b *block, prev, id uint32) {
	b.setPrev(prev)
	l.blocks[prev].next = id
}
