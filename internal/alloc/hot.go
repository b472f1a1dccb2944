package alloc

// A freed block stays hot for one call: it is neither merged nor indexed. If the next call is an
// Alloc that would get this block in any case, the Alloc returns it directly. Any other call
// merges the block first, so the hot block never changes a placement. It only speeds up two
// common patterns:
//
//   - A temporary is repeatedly allocated, used and freed. A Free right after the Alloc of the same
//     block restores the state before that Alloc, so the same request gets the same block.
//   - A new value replaces an old one of the same size. The request gets the block that has just
//     been freed if this block does not merge with a neighbor and no other free block has that
//     size.
//
// The neighbors' states are read when the block is freed, not when it is merged. Their records
// are often cache misses, and reading them early shortens the stall of a mispredicted branch.

func (p *placer) mergeHot() {
	p.lastAlloc = 0
	if p.hot != 0 {
		p.cool(p.homes[p.hotHome])
	}
}

// cool merges the hot block, adds the result to index x, and returns its size in units.
func (p *placer) cool(x *index) uint64 {
	id := p.hot
	p.hot = 0
	return p.merge(x, &p.blocks[id], id, p.neighbors)
}

type neighbors struct{ prev, next bool }

func (p *placer) freeNeighbors(b *block) neighbors {
	return neighbors{p.blocks[b.prev()].state() == Free, p.blocks[b.next].state() == Free}
}

// freeHot frees a block without uses or pins and makes it hot. home is the number of the block's
// index. The caller must have merged the previous hot block and then set p.neighbors.
func (p *placer) freeHot(b *block, id, home uint32) {
	p.counts.live--
	p.expire(b)
	p.hotRepeats = id == p.lastAlloc
	p.hot, p.hotHome, p.lastAlloc = id, home, 0
}

func (p *placer) servedByHot(units uint64, home uint32) bool {
	if p.hotRepeats {
		return p.lastUnits == units && p.lastHome == home
	}
	return p.blocks[p.hot].units() == units && p.hotIsOnly(home, units)
}

// hotIsOnly reports whether the hot block, whose size is units, belongs to index home, does not
// merge with a neighbor, and would be the only block of its class.
func (p *placer) hotIsOnly(home uint32, units uint64) bool {
	return units <= exactBins && p.hotHome == home && p.homes[home].bags[units-1].count == 0 &&
		p.neighbors == neighbors{}
}
