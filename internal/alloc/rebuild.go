package alloc

import "slices"

// rebuilder changes the layout of a Core's segments without moving live or pinned blocks.
type rebuilder struct {
	placer  *placer
	streams *streamTable
	uses    *useTable
	kept    []Range
	oldCuts map[uint32]Range
	newCuts map[uint32]Range
}

type heldBlock struct {
	id          uint32
	streamIndex uint32
	live        bool
	Range
}

// extentOf returns the full range of a block, even if a rebuild has shortened its record.
func extentOf(b Block, cutBlocks map[uint32]Range) Range {
	if r, cut := cutBlocks[uint32(b.Handle)]; cut {
		return r
	}
	return Range{b.Segment, b.Offset, b.Size}
}

type rebuildResult uint8

const (
	absent  rebuildResult = iota // the Core does not have the segment
	usable                       // its free memory can be allocated
	retired                      // it holds blocks, but nothing is allocated from it
	unused                       // it is retired and holds no blocks
)

func (r *rebuilder) restore(ordinal int32, extent Extent, held []heldBlock) rebuildResult {
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

// dropUnheld drops everything except live and pinned blocks, which it returns by segment.
func (r *rebuilder) dropUnheld(segments int) [][]heldBlock {
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
		p.extras[id].kept = false
		if !isHeld[id] {
			r.uses.dropUses(&p.extras[id])
			p.dropBlock(&p.blocks[id], id)
		}
	}
	p.regions, p.spareRegion = p.regions[:1], 0
	p.dropAll()
	clear(p.indexes)
	p.mapped = 0
	p.counts = counts{peakUsed: p.counts.peakUsed, peakMapped: p.counts.peakMapped}
	r.streams.renumber()
	return held
}

func (r *rebuilder) heldOf(ordinal int32) (held []heldBlock) {
	p := r.placer
	for id := range p.blocksOf(ordinal) {
		b := &p.blocks[id]
		if b.state() == Live || b.state() == Parked && p.extras[id].pins > 0 {
			held = append(held, heldBlock{
				id, p.indexOf(b) / 2, b.state() == Live, extentOf(p.view(id), r.oldCuts),
			})
		}
	}
	return held
}

func (r *rebuilder) layOut(ordinal int32, held []heldBlock, kept []Range) {
	s := &r.placer.segments[ordinal]
	s.indexID &= 1 // select stream 0
	owners := r.ownersOf(s, held)
	previous := uint32(0)
	for first := 0; first < len(owners); {
		end := first + 1
		for end < len(owners) && owners[end] == owners[first] {
			end++
		}
		id := r.addRegion(ordinal, owners[first])
		if previous == 0 {
			s.first = id
		} else {
			r.placer.regions[previous].next = id
		}
		held = r.fillRegion(id, Range{
			ordinal, int64(first) * spanBytes,
			min(int64(end)*spanBytes, s.bytes) - int64(first)*spanBytes,
		}, held, kept)
		previous, first = id, end
	}
}

// ownersOf returns the stream index for each span of a segment. It also numbers the streams of live
// blocks.
func (r *rebuilder) ownersOf(s *segment, held []heldBlock) []uint32 {
	owners := make([]uint32, (s.bytes+spanBytes-1)/spanBytes)
	for _, h := range held {
		if h.live {
			h.eachSpan(func(s span) { owners[s.number] = h.streamIndex })
			r.streams.ensureNumber(h.streamIndex)
		}
	}
	return owners
}

func (r *rebuilder) addRegion(ordinal int32, owner uint32) uint32 {
	p := r.placer
	s, id, ring := &p.segments[ordinal], p.newRegion(), p.newBlock()
	indexID := 2*owner + s.indexID&1
	p.regions[id] = region{
		origin: s.base, dirtyEnd: s.base, reservedEnd: s.base,
		ordinal: ordinal, indexID: indexID, ring: ring, owner: r.streams.streams[owner].number,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}
	b := &p.blocks[ring]
	b.packed, b.unitsAndPrev, b.next = uint64(vacant), uint64(ring), ring
	return id
}

// fillRegion creates the blocks of a region, and returns the held blocks after the region.
func (r *rebuilder) fillRegion(
	regionID uint32, area Range, held []heldBlock, kept []Range,
) []heldBlock {
	p := r.placer
	for offset := area.Offset; offset < area.end(); {
		end := area.end()
		if len(held) > 0 {
			end = min(end, held[0].Offset)
		}
		keep, boundary := inRanges(kept, area.Segment, offset)
		var id uint32
		if end == offset {
			id, end, held = held[0].id, r.cutEnd(held[0]), held[1:]
		} else {
			id, end = p.newBlock(), min(end, boundary)
		}
		r.appendBlock(regionID, id, Range{area.Segment, offset, end - offset}, keep)
		offset = end
	}
	region := &p.regions[regionID]
	region.dirtyEnd = max(p.usedEnd(regionID), region.reservedEnd)
	return held
}

// cutEnd returns the offset at which a held block's record ends. The record of a parked block
// covers only the first span, because another stream may own the next one.
func (r *rebuilder) cutEnd(h heldBlock) int64 {
	end := min(h.end(), (h.Offset/spanBytes+1)*spanBytes)
	if h.live || end == h.end() {
		return h.end()
	}
	r.newCuts[h.id] = h.Range
	return end
}

// inRanges reports whether an offset is in one of the ranges, and where that range ends or the next
// one begins.
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

// appendBlock appends a held, kept or free block to a region.
func (r *rebuilder) appendBlock(regionID, id uint32, extent Range, keep bool) {
	p := r.placer
	region, b, e := &p.regions[regionID], &p.blocks[id], &p.extras[id]
	ring := &p.blocks[region.ring]
	last := ring.prev()
	b.moveTo(
		(region.origin+uint64(extent.Offset)>>unitShift)<<idBits|uint64(regionID),
		uint64(extent.Size)>>unitShift)
	b.setPrev(last)
	b.next = region.ring
	p.blocks[last].next = id
	ring.setPrev(id)
	if e.kept = keep; keep {
		b.packed |= hasExtra
	}
	switch {
	case b.state() >= Live:
	case keep:
		*e = extra{kept: true}
		b.packed = uint64(Parked) | hasExtra
	default:
		p.insert(p.indexes[region.indexID], b, id, b.units())
		return
	}
	r.count(extent.Segment, b, e)
}

// count adds a block that is not free to the counters. A block in a retired segment counts only as
// pinned.
func (r *rebuilder) count(ordinal int32, b *block, e *extra) {
	n := &r.placer.counts
	if e.pins > 0 {
		n.pinned += b.size()
	}
	if r.placer.segments[ordinal].retired {
		return
	}
	n.used += b.size()
	n.peakUsed = max(n.peakUsed, n.used)
	n.requested += b.requested()
	if b.state() == Live {
		n.live++
	} else {
		n.parked += b.size()
	}
}
