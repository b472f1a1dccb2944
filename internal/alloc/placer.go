package alloc

import "fmt"

// placer chooses the free block for a request, splits and merges blocks, and counts them.
type placer struct {
	layout
	config    Config
	geometric bool   // whether the sizing is Geometric
	arenaEnd  uint64 // first unused position in the arena
	mapped    int64
	counts    counts
	frees     uint64
	owner     uint32 // see Core.Owner

	// The latest Alloc and the hot block; see hot.go.

	lastAlloc  uint32 // 0 if the latest call was not an Alloc
	lastUnits  uint64
	lastIndex  uint32
	hot        uint32 // hot block, or 0
	hotIndex   uint32
	hotRepeats bool // whether the hot block was freed right after its Alloc
	neighbors  neighbors
}

func (p *placer) makeLive(id uint32, size int64) Block {
	b := &p.blocks[id]
	b.packed = uint64(Live) | uint64(size)<<requestedShift
	r := p.regionOf(b)
	v := r.view(b, id)
	p.owner = r.owner
	if end := b.position() + b.units(); end > r.dirtyEnd {
		r.dirtyEnd = end
	}
	p.counts.live++
	p.counts.requested += size
	used := p.counts.used + v.Size
	p.counts.used = used
	if used > p.counts.peakUsed {
		p.counts.peakUsed = used
	}
	return v
}

// fit returns the free block of an index that serves a request, and the block's size. It also
// merges the hot block. If the hot block belongs to the same index, fit searches before the merge,
// so that the processor can overlap the two. If the merge affects the result, fit searches again.
func (p *placer) fit(index *sizeIndex, units uint64, indexID uint32) (id uint32, found uint64) {
	if p.hot != 0 && p.hotIndex != indexID {
		p.mergeHotInto(p.indexes[p.hotIndex])
	}
	if index == nil {
		return 0, 0
	}
	id, found = p.find(index, units)
	if p.hot != 0 {
		merged := p.mergeHotInto(index)
		b := &p.blocks[id]
		if merged-units <= found-units || b.units() != found || b.state() != Free {
			id, found = p.find(index, units)
		}
	}
	return id, found
}

// takeFront removes a free block from its index and returns the part for the request. The remainder
// keeps the block's record.
func (p *placer) takeFront(index *sizeIndex, id uint32, units, found uint64) uint32 {
	rest := found - units
	if rest == 0 || !p.geometric && !p.config.splits(int64(units)<<unitShift, int64(rest)<<unitShift) {
		p.remove(index, &p.blocks[id], found)
		return id
	}
	front := p.newBlock()
	b, f := &p.blocks[id], &p.blocks[front]
	prev, place := b.prev(), b.positionAndRegion
	f.positionAndRegion, f.unitsAndPrev, f.next = place, units<<idBits, id
	p.linkAfter(f, prev, front)
	b.setPrev(front)
	place += units << idBits
	if found > exactBins && p.resizeClass(index, b, id, place, rest) {
		return front
	}
	p.remove(index, b, found)
	b.moveTo(place, rest)
	p.insert(index, b, id, rest)
	return front
}

func (p *placer) reserve(units uint64, indexID uint32) bool {
	id, _ := p.fit(p.indexes[indexID], units, indexID)
	if id == 0 {
		return false
	}
	b := &p.blocks[id]
	p.regionOf(b).reserve(b.position() + units)
	return true
}

func (p *placer) outOfMemory(size int64, indexID uint32) error {
	e := &OutOfMemoryError{Requested: size, Capacity: p.config.Capacity}
	for _, h := range [2]uint32{indexID &^ 1, indexID | 1} {
		if index := p.indexes[h]; index != nil {
			e.Free += p.freeBytes(index)
			e.LargestFree = max(e.LargestFree, p.largest(index))
		}
	}
	return e
}

func (p *placer) makeFree(b *block, id uint32) {
	p.invalidate(b)
	p.merge(p.indexes[p.indexOf(b)], b, id, p.freeNeighbors(b))
}

func (p *placer) invalidate(b *block) {
	p.counts.used -= b.size()
	p.counts.requested -= b.requested()
	p.frees++
	b.generation++
	b.packed = uint64(vacant)
}

// coverSegment creates a region with one free block for a new segment.
func (p *placer) coverSegment(base, units uint64, indexID, owner uint32, ordinal int32) uint32 {
	regionID, id, ring := p.newRegion(), p.newBlock(), p.newBlock()
	p.regions[regionID] = region{
		origin: base, dirtyEnd: base, reservedEnd: base,
		ordinal: ordinal, indexID: indexID, ring: ring, owner: owner,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}
	b, ringBlock := &p.blocks[id], &p.blocks[ring]
	b.positionAndRegion = base<<idBits | uint64(regionID)
	b.unitsAndPrev, b.next = units<<idBits|uint64(ring), ring
	ringBlock.packed, ringBlock.unitsAndPrev, ringBlock.next = uint64(vacant), uint64(id), id
	p.insert(p.indexes[indexID], b, id, units)
	return regionID
}

func (p *placer) baseFor(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	switch {
	case p.arenaEnd+units > maxPosition || len(p.blocks)+1 >= maxBlocks || len(p.regions) >= maxBlocks:
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrExhausted)
	case p.config.Policy == Creation:
		return p.arenaEnd, nil
	case address%Unit != 0 || address>>unitShift+units > maxPosition:
		return 0, fmt.Errorf("adding a segment at %#x: %w", address, ErrAddress)
	}
	return address >> unitShift, nil
}

func (p *placer) isFree(s *segment) bool {
	for regionID := s.first; regionID != 0; regionID = p.regions[regionID].next {
		if _, free := p.firstBlock(regionID); !free {
			return false
		}
	}
	return true
}

func (p *placer) dropRegions(regionID uint32) {
	for regionID != 0 {
		g := p.regions[regionID]
		id, _ := p.firstBlock(regionID)
		p.remove(p.indexes[g.indexID], &p.blocks[id], p.blocks[id].units())
		p.dropBlock(&p.blocks[id], id)
		p.dropBlock(&p.blocks[g.ring], g.ring)
		p.dropRegion(regionID)
		regionID = g.next
	}
}
