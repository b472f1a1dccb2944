package alloc

import "iter"

// region describes a range of one segment whose blocks serve one stream. The regions of a
// segment cover the whole segment. Blocks are linked and merged only within a region.
//
// Memory above a region's high-water mark is clean: it has not been allocated since the owner's
// work was last known to be complete. No queued work uses it, so any stream can use clean memory
// without waiting for another stream.
type region struct {
	origin  uint64 // position of the first unit of the segment
	high    uint64 // high-water mark; not above the first unit if the whole region is clean
	ordinal int32  // ordinal of the segment
	home    uint32 // number of the index that holds its free blocks
	owner   uint32 // number of its stream; see Number
	ring    uint32 // vacant block record that links the last block to the first; 0 in unused records
	floor   uint64 // end of reserved memory, and lower limit of high
	next    uint32 // next region in the segment, or next unused record; 0 if there is none
}

// spanUnits is the granularity of regions in units, which is 2 MiB. The last region of a segment
// ends with the segment, so its size may not be a multiple of spanUnits.
const spanUnits = uint64(2*mib) >> unitShift

type layout struct {
	freeBlocks
	segments    []segment
	regions     []region // by number; index 0 is reserved and means no region
	spareRegion uint32   // head of the list of unused records
	homes       []*index // large and small index of each stream, by number; nil until needed
}

func (l *layout) regionOf(b *block) *region { return &l.regions[b.region()] }

func (l *layout) homeOf(b *block) uint32 { return l.regionOf(b).home }

func (l *layout) view(id uint32) Block {
	b := &l.blocks[id]
	return l.regionOf(b).view(b, id)
}

// blocksOf yields the numbers of all blocks of a segment, including free ones, by offset. If the
// segment has been trimmed or was never added, it yields nothing.
func (l *layout) blocksOf(ordinal int32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if ordinal < 0 || int(ordinal) >= len(l.segments) {
			return
		}
		for r := l.segments[ordinal].first; r != 0; r = l.regions[r].next {
			ring := l.regions[r].ring
			for id := l.blocks[ring].next; id != ring; id = l.blocks[id].next {
				if !yield(id) {
					return
				}
			}
		}
	}
}

func (r *region) view(b *block, id uint32) Block {
	return Block{
		Segment: r.ordinal,
		Offset:  int64(b.position()-r.origin) << unitShift,
		Size:    b.size(),
		Handle:  makeHandle(id, b.generation),
	}
}

// grabRegion returns the number of an unused record. It may reallocate l.regions.
func (l *layout) grabRegion() uint32 {
	if r := l.spareRegion; r != 0 {
		l.spareRegion = l.regions[r].next
		return r
	}
	l.regions = append(l.regions, region{})
	return uint32(len(l.regions) - 1)
}

func (l *layout) dropRegion(r uint32) {
	l.regions[r] = region{next: l.spareRegion}
	l.spareRegion = r
}

func (l *layout) extent(r uint32) (base, end uint64) {
	ring := &l.blocks[l.regions[r].ring]
	last := &l.blocks[ring.prev()]
	return l.blocks[ring.next].position(), last.position() + last.units()
}

// usedEnd returns the position after a region's last block that is not free.
func (l *layout) usedEnd(r uint32) uint64 {
	last := &l.blocks[l.blocks[l.regions[r].ring].prev()]
	if last.state() == Free {
		return last.position()
	}
	return last.position() + last.units()
}

// single returns the first block of a region, and reports whether it is free and covers the whole
// region.
func (l *layout) single(r uint32) (id uint32, free bool) {
	ring := &l.blocks[l.regions[r].ring]
	id = ring.next
	return id, id == ring.prev() && l.blocks[id].state() == Free
}

// clean lowers the high-water marks of a stream's regions as far as possible. The stream's queued
// work must be complete.
func (l *layout) clean(stream uint32) {
	for r := range l.regions {
		if g := &l.regions[r]; g.ring != 0 && g.home/2 == stream {
			g.high = max(l.usedEnd(uint32(r)), g.floor)
		}
	}
}

func (r *region) reserve(end uint64) {
	r.floor = max(r.floor, end)
	r.high = max(r.high, end)
}

// absorb merges each region that is entirely clean into the previous region, and joins neighboring
// regions of the same stream, so that takeClean finds adjacent clean memory as one run.
func (l *layout) absorb() {
	for i := range l.segments {
		for r := l.segments[i].first; r != 0; {
			next := l.regions[r].next
			switch {
			case next == 0:
				r = 0
			case l.whollyClean(next):
				l.assign(next, l.regions[r].home, l.regions[r].owner)
				l.join(r, r)
			case l.regions[next].home == l.regions[r].home:
				l.join(r, r)
			default:
				r = next
			}
		}
	}
}

func (l *layout) whollyClean(r uint32) bool {
	base, _ := l.extent(r)
	return l.regions[r].high <= base
}

// takeClean moves clean memory to a stream, for a request that no free block of the stream can
// serve, and reports whether there was enough. It takes the memory from the end of the smallest
// clean run that is large enough, and among runs of the same size from the first by segment and
// offset.
func (l *layout) takeClean(units uint64, home, owner uint32) bool {
	if l.crowded() {
		return false
	}
	best, bestSize, start := uint32(0), ^uint64(0), uint64(0)
	for i := range l.segments {
		for r := l.segments[i].first; r != 0; r = l.regions[r].next {
			g := &l.regions[r]
			base, end := l.extent(r)
			low := max(g.high, base)
			if position, fits := g.lastSpan(low, end, units); fits && end-low < bestSize {
				best, bestSize, start = r, end-low, position
			}
		}
	}
	if best == 0 {
		return false
	}
	l.transferTail(best, start, home, owner)
	return true
}

func (l *layout) crowded() bool {
	return len(l.blocks)+len(l.segments)+len(l.regions) > maxBlocks/2
}

// lastSpan returns the last span boundary at which a request can start and still end within the
// given range, and reports whether there is one.
func (r *region) lastSpan(low, end, units uint64) (position uint64, fits bool) {
	if end < low || end-low < units {
		return 0, false
	}
	position = r.origin + (end-units-r.origin)&^(spanUnits-1)
	return position, position >= low
}

// transferTail transfers the free memory of a region, starting at the position start, to a
// stream. If the stream owns the next region, the memory is merged into that region.
func (l *layout) transferTail(r uint32, start uint64, home, owner uint32) {
	if base, _ := l.extent(r); start > base {
		r = l.split(r, start)
	}
	l.assign(r, home, owner)
	if above := l.regions[r].next; above != 0 && l.regions[above].home == home {
		l.join(r, above)
	}
}

// assign transfers a region that consists of one free block to a stream.
func (l *layout) assign(r, home, owner uint32) {
	g := &l.regions[r]
	if l.homes[home] == nil {
		l.homes[home] = new(index)
	}
	id, _ := l.single(r)
	b := &l.blocks[id]
	l.remove(l.homes[g.home], b, b.units())
	g.home, g.owner, g.floor = home, owner, g.origin
	l.insert(l.homes[home], b, id, b.units())
}

// split divides a region at a position, which must be a block boundary or inside a free block.
// It returns the upper part as a region of the same stream.
func (l *layout) split(r uint32, position uint64) uint32 {
	first := l.boundary(r, position)
	upper, ring := l.grabRegion(), l.grab()
	g, u := &l.regions[r], &l.regions[upper]
	*u = *g
	u.ring = ring
	g.next, g.high, g.floor = upper, min(g.high, position), min(g.floor, position)
	if u.floor <= position {
		u.floor = u.origin
	}
	lowRing, b := &l.blocks[g.ring], &l.blocks[first]
	last, before := lowRing.prev(), b.prev()
	l.blocks[ring].packed = uint64(vacant)
	l.blocks[ring].span = uint64(last)
	l.blocks[ring].next = first
	l.blocks[last].next = ring
	b.setPrev(ring)
	lowRing.setPrev(before)
	l.blocks[before].next = g.ring
	l.setRegion(first, ring, upper)
	return upper
}

// boundary returns the block of a region that begins at a position above the region's start. If
// the position is inside a free block, boundary splits that block.
func (l *layout) boundary(r uint32, position uint64) uint32 {
	g := &l.regions[r]
	id := l.blocks[g.ring].prev()
	for l.blocks[id].position() > position {
		id = l.blocks[id].prev()
	}
	if l.blocks[id].position() == position {
		return id
	}
	rest := l.grab()
	b, f, x := &l.blocks[id], &l.blocks[rest], l.homes[g.home]
	units, after := b.units(), b.next
	front := position - b.position()
	l.remove(x, b, units)
	f.place, f.span, f.next = b.place+front<<idBits, (units-front)<<idBits|uint64(id), after
	b.span, b.next = front<<idBits|b.span&idMask, rest
	l.blocks[after].setPrev(rest)
	l.insert(x, b, id, front)
	l.insert(x, f, rest, units-front)
	return rest
}

// setRegion assigns the blocks in [first, end) to a region.
func (l *layout) setRegion(first, end, r uint32) {
	for id := first; id != end; id = l.blocks[id].next {
		b := &l.blocks[id]
		b.place = b.place&^idMask | uint64(r)
	}
}

// join merges a region with the next one, which must belong to the same stream. kept is the region
// of the two whose record survives. Because join visits all blocks of the other region, kept should
// be the region that probably has more blocks.
func (l *layout) join(r, kept uint32) {
	above := l.regions[r].next
	g, u := &l.regions[r], &l.regions[above]
	home, low, up, next := g.home, g.ring, u.ring, u.next
	mark, floor := g.high, g.floor
	if base, _ := l.extent(above); u.high > base {
		mark, floor = u.high, max(floor, u.floor)
	}
	ring, upRing := &l.blocks[low], &l.blocks[up]
	last, first, end := ring.prev(), upRing.next, upRing.prev()
	if kept == r {
		l.setRegion(first, up, r)
		l.dropRegion(above)
	} else {
		l.setRegion(ring.next, low, above)
		*l.linkTo(r) = above
		u.ring = low
		l.dropRegion(r)
	}
	l.regions[kept].next, l.regions[kept].high, l.regions[kept].floor = next, mark, floor
	l.blocks[last].next = first
	l.blocks[first].setPrev(last)
	l.blocks[end].next = low
	ring.setPrev(end)
	l.drop(upRing, up)
	l.mergeNext(l.homes[home], last)
}

func (l *layout) mergeNext(x *index, id uint32) {
	b := &l.blocks[id]
	if b.state() != Free || l.blocks[b.next].state() != Free {
		return
	}
	l.remove(x, b, b.units())
	b.packed = uint64(vacant)
	l.merge(x, b, id, neighbors{next: true})
}

// linkTo returns the link that points to a region in its segment's list.
func (l *layout) linkTo(r uint32) *uint32 {
	link := &l.segments[l.regions[r].ordinal].first
	for *link != r {
		link = &l.regions[*link].next
	}
	return link
}
