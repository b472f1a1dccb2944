package alloc

// A freed block stays hot for one call: it is neither merged nor indexed. If the next call is an
// Alloc that would get this block in any case, Alloc returns it directly. Any other call merges the
// block first, so the hot block never changes a placement. There are two such cases:
//
//   - A Free right after the Alloc of the same block restores the state before that Alloc, so the
//     same request gets the same block.
//   - The request gets the block that has just been freed if this block does not merge with a
//     neighbor and no other free block has its size.

func (p *placer) mergeHot() {
	p.lastAlloc = 0
	if p.hot != 0 {
		p.mergeHotInto(p.indexes[p.hotIndex])
	}
}

// mergeHotInto merges the hot block into an index, and returns the resulting size in units.
func (p *placer) mergeHotInto(index *sizeIndex) uint64 {
	id := p.hot
	p.hot = 0
	return p.merge(index, &p.blocks[id], id, p.neighbors)
}

type neighbors struct{ prev, next bool }

func (p *placer) freeNeighbors(b *block) neighbors {
	return neighbors{p.blocks[b.prev()].state() == Free, p.blocks[b.next].state() == Free}
}

// freeHot frees a block without uses or pins and makes it hot. The caller must first merge the
// previous hot block and then set p.neighbors.
func (p *placer) freeHot(b *block, id, indexID uint32) {
	p.counts.live--
	p.invalidate(b)
	p.hotRepeats = id == p.lastAlloc
	p.hot, p.hotIndex, p.lastAlloc = id, indexID, 0
}

func (p *placer) servedByHot(units uint64, indexID uint32) bool {
	if p.hotRepeats {
		return p.lastUnits == units && p.lastIndex == indexID
	}
	return p.blocks[p.hot].units() == units && p.hotIsOnly(indexID, units)
}

// hotIsOnly reports whether the hot block belongs to the index, does not merge with a neighbor,
// and would be the only block of its class.
func (p *placer) hotIsOnly(indexID uint32, units uint64) bool {
	return units <= exactBins && p.hotIndex == indexID &&
		p.indexes[indexID].bags[units-1].count == 0 && p.neighbors == neighbors{}
}
