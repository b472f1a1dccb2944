package alloc

import "slices"

// rebuilder changes the layout of a Core's segments without moving live or pinned blocks.
type rebuilder struct {
	placer  *placer
	streams *streamTable
	uses    *useTable
	kept    []Range          // see Arrangement.Kept
	oldCuts map[uint32]Range // Core.cutBlocks before the rebuild
	newCuts map[uint32]Range // Core.cutBlocks after the rebuild
}

type heldBlock struct {
	id     uint32
	stream uint32 // index of its stream's record
	live   bool
	Range
}

// extentOf returns the full range of a block that is not free, even if a rebuild has shortened
// the block's record.
func extentOf(b Block, cutBlocks map[uint32]Range) Range {
	if r, cut := cutBlocks[uint32(b.Handle)]; cut {
		return r
	}
	return Range{b.Segment, b.Offset, b.Size}
}

// fate describes the result of a rebuild for a segment.
type fate uint8

const (
	absent  fate = iota // the Core does not have the segment
	usable              // its free memory can be allocated
	retired             // it holds blocks, but nothing is allocated from it
	unused              // it is retired and holds no blocks
)

func (r *rebuilder) restore(ordinal int32, extent Extent, held []heldBlock) fate {
	p := r.placer
	if int(ordinal) == len(p.segments) {
		p.segments = append(p.segments, segment{})
	}
	s := &p.segments[ordinal]
	switch {
	case s.bytes == 0:
		return absent
	case extent.Bytes > 0:
		p.mapped += s.bytes
		p.counts.segments++
		r.layOut(ordinal, held, r.kept)
		return usable
	case len(held) > 0:
		s.retired = true
		r.layOut(ordinal, held, []Range{{ordinal, 0, s.bytes}})
		return retired
	}
	return unused
}

// empty drops all regions, free lists and stream numbers, and all blocks that are neither live
// nor pinned. It returns the remaining blocks by segment.
func (r *rebuilder) empty(segments int) [][]heldBlock {
	p := r.placer
	held := make([][]heldBlock, segments)
	for ordinal := range p.segments {
		held[ordinal] = r.heldOf(int32(ordinal))
	}
	isHeld := make([]bool, len(p.blocks))
	for _, h := range slices.Concat(held...) {
		isHeld[h.id] = true
	}
	p.vacant = 0
	for id := uint32(len(p.blocks) - 1); id > 0; id-- {
		p.sides[id].kept = false
		if !isHeld[id] {
			r.uses.forgetUses(&p.sides[id])
			p.drop(&p.blocks[id], id)
		}
	}
	p.regions, p.spareRegion = p.regions[:1], 0
	p.forgetFree()
	clear(p.homes)
	p.mapped = 0
	p.counts = counts{peak: p.counts.peak, peakMapped: p.counts.peakMapped}
	r.streams.renumber()
	return held
}

// heldOf returns the live and pinned blocks of a segment, by offset.
func (r *rebuilder) heldOf(ordinal int32) (held []heldBlock) {
	p := r.placer
	for id := range p.blocksOf(ordinal) {
		b := &p.blocks[id]
		if b.state() == Live || b.state() == Parked && p.sides[id].pins > 0 {
			held = append(held, heldBlock{
				id, p.homeOf(b) / 2, b.state() == Live, extentOf(p.view(id), r.oldCuts),
			})
		}
	}
	return held
}

func (r *rebuilder) layOut(ordinal int32, held []heldBlock, kept []Range) {
	s := &r.placer.segments[ordinal]
	s.home &= 1 // stream 0
	owners := r.ownersOf(s, held)
	previous := uint32(0)
	for first := 0; first < len(owners); {
		end := first + 1
		for end < len(owners) && owners[end] == owners[first] {
			end++
		}
		id := r.newRegion(ordinal, owners[first])
		if previous == 0 {
			s.first = id
		} else {
			r.placer.regions[previous].next = id
		}
		held = r.fill(id, Range{
			ordinal, int64(first) * spanBytes,
			min(int64(end)*spanBytes, s.bytes) - int64(first)*spanBytes,
		}, held, kept)
		previous, first = id, end
	}
}

// ownersOf returns, for each span of a segment, the record index of the stream that owns the span,
// which is stream 0 if the span has no live block. It also numbers the streams of live blocks.
func (r *rebuilder) ownersOf(s *segment, held []heldBlock) []uint32 {
	owners := make([]uint32, (s.bytes+spanBytes-1)/spanBytes)
	for _, h := range held {
		if h.live {
			h.eachSpan(func(s span) { owners[s.number] = h.stream })
			r.streams.ensureNumber(h.stream)
		}
	}
	return owners
}

func (r *rebuilder) newRegion(ordinal int32, owner uint32) uint32 {
	p := r.placer
	s, id, ring := &p.segments[ordinal], p.grabRegion(), p.grab()
	home := 2*owner + s.home&1
	p.regions[id] = region{
		origin: s.base, high: s.base, floor: s.base, ordinal: ordinal, home: home, ring: ring,
		owner: r.streams.streams[owner].number,
	}
	if p.homes[home] == nil {
		p.homes[home] = new(index)
	}
	b := &p.blocks[ring]
	b.packed, b.span, b.next = uint64(vacant), uint64(ring), ring
	return id
}

// fill creates the blocks of a region that covers the given area. It returns the held blocks
// that lie after the area.
func (r *rebuilder) fill(region uint32, area Range, held []heldBlock, kept []Range) []heldBlock {
	p := r.placer
	for offset := area.Offset; offset < area.end(); {
		end := area.end()
		if len(held) > 0 {
			end = min(end, held[0].Offset)
		}
		keep, boundary := inRanges(kept, area.Segment, offset)
		var id uint32
		if end == offset {
			id, end, held = held[0].id, r.cut(held[0]), held[1:]
		} else {
			id, end = p.grab(), min(end, boundary)
		}
		r.put(region, id, Range{area.Segment, offset, end - offset}, keep)
		offset = end
	}
	g := &p.regions[region]
	g.high = max(p.usedEnd(region), g.floor)
	return held
}

// cut returns the offset at which a held block's record ends. For a parked block, that is the
// end of the first span that the block touches, because another stream may own the next span.
// The rest of a parked block becomes kept blocks.
func (r *rebuilder) cut(h heldBlock) int64 {
	end := min(h.end(), (h.Offset/spanBytes+1)*spanBytes)
	if h.live || end == h.end() {
		return h.end()
	}
	r.newCuts[h.id] = h.Range
	return end
}

// inRanges reports whether an offset is in one of the ranges. It also returns the offset at
// which that range ends or, if the offset is in none, at which the next range begins.
func inRanges(ranges []Range, ordinal int32, offset int64) (in bool, boundary int64) {
	for _, r := range ranges {
		switch {
		case r.Segment != ordinal || r.end() <= offset:
		case r.Offset <= offset:
			return true, r.end()
		default:
			return false, r.Offset
		}
	}
	return false, MaxSize
}

// put appends record id to a region. If the record does not describe a held block, it becomes a
// kept block or a free block.
func (r *rebuilder) put(region, id uint32, extent Range, keep bool) {
	p := r.placer
	g, b, h := &p.regions[region], &p.blocks[id], &p.sides[id]
	ring := &p.blocks[g.ring]
	last := ring.prev()
	b.moveTo(
		(g.origin+uint64(extent.Offset)>>unitShift)<<idBits|uint64(region),
		uint64(extent.Size)>>unitShift)
	b.setPrev(last)
	b.next = g.ring
	p.blocks[last].next = id
	ring.setPrev(id)
	if h.kept = keep; keep {
		b.packed |= hasSide
	}
	switch {
	case b.state() >= Live:
	case keep:
		*h = side{kept: true}
		b.packed = uint64(Parked) | hasSide
	default:
		p.insert(p.homes[g.home], b, id, b.units())
		return
	}
	r.count(extent.Segment, b, h)
}

// count adds a block that is not free to the counters. A block in a retired segment is counted
// only as pinned.
func (r *rebuilder) count(ordinal int32, b *block, h *side) {
	n := &r.placer.counts
	if h.pins > 0 {
		n.pinned += b.size()
	}
	if r.placer.segments[ordinal].retired {
		return
	}
	n.used += b.size()
	n.peak = max(n.peak, n.used)
	n.requested += b.requested()
	if b.state() == Live {
		n.live++
	} else {
		n.parked += b.size()
	}
}
