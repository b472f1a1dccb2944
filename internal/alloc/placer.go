package alloc

import "fmt"

// placer chooses the free block for a request, splits and merges blocks, and counts them.
type placer struct {
	layout
	config    Config
	geometric bool   // whether every remainder is split off and streams share segments
	tail      uint64 // first unused arena position, in units
	mapped    int64  // bytes of the segments
	counts    counts
	frees     uint64 // how many times a block has become free
	owner     uint32 // see Core.Owner

	// The latest Alloc and the hot block; see hot.go.

	lastAlloc  uint32    // block that the latest call allocated, or 0 if that call was not an Alloc
	lastUnits  uint64    // size of the latest Alloc in units
	lastHome   uint32    // index from which the latest Alloc was served
	hot        uint32    // hot block, or 0
	hotHome    uint32    // index of the hot block
	hotRepeats bool      // whether the hot block was freed right after its Alloc
	neighbors  neighbors // which neighbors of the hot block are free
}

// makeLive makes a block live and returns it. The block must not be in an index.
func (p *placer) makeLive(id uint32, size int64) Block {
	b := &p.blocks[id]
	b.packed = uint64(Live) | uint64(size)<<requestedShift
	r := p.regionOf(b)
	v := r.view(b, id)
	p.owner = r.owner
	if end := b.position() + b.units(); end > r.high {
		r.high = end
	}
	p.counts.live++
	p.counts.requested += size
	used := p.counts.used + v.Size
	p.counts.used = used
	if used > p.counts.peak {
		p.counts.peak = used
	}
	return v
}

// fit returns the free block of an index that serves a request, and the block's size in units. If
// no block fits, it returns 0, 0. It also merges the hot block. If the hot block belongs to the
// same index, fit searches first and merges afterwards, so that the processor can overlap the two.
// Rarely, the merge changes the block that was found, or creates one that fits at least as well;
// fit then searches again.
func (p *placer) fit(x *index, units uint64, home uint32) (id uint32, found uint64) {
	if p.hot != 0 && p.hotHome != home {
		p.cool(p.homes[p.hotHome])
	}
	if x == nil {
		return 0, 0
	}
	id, found = p.find(x, units)
	if p.hot != 0 {
		merged := p.cool(x)
		b := &p.blocks[id]
		if merged-units <= found-units || b.units() != found || b.state() != Free {
			id, found = p.find(x, units)
		}
	}
	return id, found
}

// cut removes a free block, whose size is found, from its index and returns the part for the
// request. If the sizing permits it, the remainder is split off and keeps the block's record.
func (p *placer) cut(x *index, id uint32, units, found uint64) uint32 {
	rest := found - units
	if rest == 0 || !p.geometric && !p.config.splits(int64(units)<<unitShift, int64(rest)<<unitShift) {
		p.remove(x, &p.blocks[id], found)
		return id
	}
	front := p.grab()
	b, f := &p.blocks[id], &p.blocks[front]
	prev, place := b.prev(), b.place
	f.place, f.span, f.next = place, units<<idBits, id
	p.follow(f, prev, front)
	b.setPrev(front)
	place += units << idBits
	if found > exactBins && p.resizeClass(x, b, id, place, rest) {
		return front
	}
	p.remove(x, b, found)
	b.moveTo(place, rest)
	p.insert(x, b, id, rest)
	return front
}

func (p *placer) reserve(units uint64, home uint32) bool {
	id, _ := p.fit(p.homes[home], units, home)
	if id == 0 {
		return false
	}
	b := &p.blocks[id]
	p.regionOf(b).reserve(b.position() + units)
	return true
}

func (p *placer) outOfMemory(size int64, home uint32) error {
	e := &OutOfMemoryError{Requested: size, Capacity: p.config.Capacity}
	for _, h := range [2]uint32{home &^ 1, home | 1} {
		if x := p.homes[h]; x != nil {
			e.Free += p.freeBytes(x)
			e.LargestFree = max(e.LargestFree, p.largest(x))
		}
	}
	return e
}

func (p *placer) makeFree(b *block, id uint32) {
	p.expire(b)
	p.merge(p.homes[p.homeOf(b)], b, id, p.freeNeighbors(b))
}

// expire invalidates a block's handle and updates the counters. It does not add the block to an
// index.
func (p *placer) expire(b *block) {
	p.counts.used -= b.size()
	p.counts.requested -= b.requested()
	p.frees++
	b.generation++
	b.packed = uint64(vacant)
}

// cover creates a region and a free block that cover a new segment, and returns the region. home
// is the number of the region's index, and number is that of its stream.
func (p *placer) cover(base, units uint64, home, number uint32, ordinal int32) uint32 {
	r, id, ring := p.grabRegion(), p.grab(), p.grab()
	p.regions[r] = region{
		origin: base, high: base, floor: base, ordinal: ordinal, home: home, ring: ring,
		owner: number,
	}
	if p.homes[home] == nil {
		p.homes[home] = new(index)
	}
	b, ringBlock := &p.blocks[id], &p.blocks[ring]
	b.place, b.span, b.next = base<<idBits|uint64(r), units<<idBits|uint64(ring), ring
	ringBlock.packed, ringBlock.span, ringBlock.next = uint64(vacant), uint64(id), id
	p.insert(p.homes[home], b, id, units)
	return r
}

func (p *placer) baseFor(bytes int64, address uint64) (uint64, error) {
	units := uint64(bytes) >> unitShift
	switch {
	case p.tail+units > maxPosition || len(p.blocks)+1 >= maxBlocks || len(p.regions) >= maxBlocks:
		return 0, fmt.Errorf("adding a segment of %d bytes: %w", bytes, ErrExhausted)
	case p.config.Policy == Creation:
		return p.tail, nil
	case address%Unit != 0 || address>>unitShift+units > maxPosition:
		return 0, fmt.Errorf("adding a segment at %#x: %w", address, ErrAddress)
	}
	return address >> unitShift, nil
}

// whollyFree reports whether each region of a segment consists of one free block.
func (p *placer) whollyFree(s *segment) bool {
	for r := s.first; r != 0; r = p.regions[r].next {
		if _, free := p.single(r); !free {
			return false
		}
	}
	return true
}

// vacate drops the regions of a segment that has only free memory. r is the segment's first
// region.
func (p *placer) vacate(r uint32) {
	for r != 0 {
		g := p.regions[r]
		id, _ := p.single(r)
		p.remove(p.homes[g.home], &p.blocks[id], p.blocks[id].units())
		p.drop(&p.blocks[id], id)
		p.drop(&p.blocks[g.ring], g.ring)
		p.dropRegion(r)
		r = g.next
	}
}
