package alloc

// A freed block stays hot for one call: it is neither merged nor indexed. If the next call is
// an Alloc that would get this block, the Alloc returns it at once. Any other call merges the
// block first, so the hot block never changes a placement. It only speeds up two common
// patterns:
//
//   - A temporary is allocated, used and freed repeatedly. A Free right after the Alloc of the
//     same block restores the state before that Alloc, so the same request gets the same block.
//   - A new value of the same size replaces an old one. The request gets the block that has
//     just been freed if this block merges with no neighbour and no other free block has that
//     size.
//
// The neighbours' states are read at the Free, not at the merge. Their records are often cache
// misses, and an early read shortens the stall of a mispredicted branch.

func (p *placer) mergeHot() {
	p.lastAlloc = 0
	if p.hot != 0 {
		p.cool(p.homes[p.hotHome])
	}
}

// cool merges the hot block into its index, x, and returns the size of the resulting block in
// units.
func (p *placer) cool(x *index) uint64 {
	id := p.hot
	p.hot = 0
	return p.merge(x, &p.blocks[id], id, p.neighbours)
}

// neighbours records which of a block's neighbours in its region are free.
type neighbours struct{ prev, next bool }

func (p *placer) freeNeighbours(b *block) neighbours {
	return neighbours{p.blocks[b.prev()].state() == Free, p.blocks[b.next].state() == Free}
}

// freeHot frees a block without uses or pins and makes it hot. home is the number of its index.
// The caller has merged the previous hot block and then set p.neighbours.
func (p *placer) freeHot(b *block, id, home uint32) {
	p.counts.live--
	p.expire(b)
	p.hotRepeats = id == p.lastAlloc
	p.hot, p.hotHome, p.lastAlloc = id, home, 0
}

// servedByHot reports whether a request would get the hot block.
func (p *placer) servedByHot(units uint64, home uint32) bool {
	if p.hotRepeats {
		return p.lastUnits == units && p.lastHome == home
	}
	return p.blocks[p.hot].units() == units && p.hotIsOnly(home, units)
}

// hotIsOnly reports whether the hot block, which has the given size, belongs to the given index,
// would merge with no neighbour and would be the only block of its class.
func (p *placer) hotIsOnly(home uint32, units uint64) bool {
	return units <= exactBins && p.hotHome == home && p.homes[home].bags[units-1].count == 0 &&
		p.neighbours == neighbours{}
}
