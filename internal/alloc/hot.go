package alloc

// A freed block stays hot for one call: it is kept unmerged and in no index. If the next call is an
// Alloc that would get this block, it gets it at once; any other call merges the block first. So
// placement does not depend on the hot block. It serves two common patterns:
//
//   - A Free right after the Alloc of the same block restores the state in which that Alloc was
//     decided, so the same request gets the same block: a temporary is made, used and dropped.
//   - A request for the size of the block that was just freed gets this block if it merges with no
//     neighbour and no other free block has that size: an old value is replaced by a new one.
//
// The state of the neighbours is read at the Free and not at the merge: their records are often
// cache misses, and a mispredicted branch costs least while its operands are at hand.

// mergeHot merges the hot block, if there is one.
func (p *placer) mergeHot() {
	p.last = 0
	if p.hot != 0 {
		p.cool(p.homes[p.hotOf])
	}
}

// cool merges the hot block with those of its index, and returns the size of the result in units.
func (p *placer) cool(x *index) uint64 {
	id := p.hot
	p.hot = 0
	return p.merge(x, &p.blocks[id], id, p.neighbours)
}

// neighbours records which neighbours of a block in its region are free.
type neighbours struct{ prev, next bool }

func (p *placer) freeNeighbours(b *block) neighbours {
	return neighbours{p.blocks[b.prev()].state() == Free, p.blocks[b.next].state() == Free}
}

// keep frees a block without uses or pins and makes it hot; home is its index. The caller has
// merged the previous hot block and then set p.neighbours.
func (p *placer) keep(b *block, id, home uint32) {
	p.counts.live--
	p.expire(b)
	p.undone = id == p.last
	p.hot, p.hotOf, p.last = id, home, 0
}

// again reports whether a request would get the hot block.
func (p *placer) again(units uint64, home uint32) bool {
	if p.undone {
		return p.asked == units && p.askedOf == home
	}
	return p.blocks[p.hot].units() == units && p.alone(home, units)
}

// alone reports whether the hot block, of the given size, belongs to an index and would be the only
// block of its class there, without merging.
func (p *placer) alone(home uint32, units uint64) bool {
	return units <= exactBins && p.hotOf == home && p.homes[home].bags[units-1].count == 0 &&
		p.neighbours == neighbours{}
}
