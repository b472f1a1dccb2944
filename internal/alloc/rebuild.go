package alloc

import "slices"

type rebuilder struct {
	placer        *placer
	streams       *streamTable
	uses          *useTable
	keptRanges    []Range
	oldFullRanges map[uint32]Range
	newFullRanges map[uint32]Range
}

type heldRecord struct {
	id       uint32
	streamID uint32
	isLive   bool
	Range
}

// fullRange returns the range of a block before Rebuild shortened it.
func fullRange(b Block, fullRanges map[uint32]Range) Range {
	if r, isShortened := fullRanges[uint32(b.Handle)]; isShortened {
		return r
	}
	return Range{b.Segment, b.Offset, b.Size}
}

type rebuildResult uint8

const (
	segmentAbsent rebuildResult = iota
	segmentUsable
	segmentRetired // has blocks, but serves no requests
	segmentEmpty   // has no blocks and can be unmapped
)

func (r *rebuilder) rebuildSegment(
	ordinal int32, extent Extent, heldBlocks []heldRecord,
) rebuildResult {
	p := r.placer
	if int(ordinal) == len(p.segments) {
		p.segments = append(p.segments, segment{})
	}
	s := &p.segments[ordinal]
	switch {
	case s.bytes == 0:
		return segmentAbsent
	case extent.Bytes > 0:
		p.mappedBytes += s.bytes
		p.counts.segmentCount++
		r.createRegions(ordinal, heldBlocks, r.keptRanges)
		return segmentUsable
	case len(heldBlocks) > 0:
		s.isRetired = true
		r.createRegions(ordinal, heldBlocks, []Range{{ordinal, 0, s.bytes}})
		return segmentRetired
	}
	return segmentEmpty
}

// dropAllButHeld returns the held (live or pinned) blocks of each segment.
func (r *rebuilder) dropAllButHeld(segmentCount int) [][]heldRecord {
	p := r.placer
	held := make([][]heldRecord, segmentCount)
	for ordinal := range p.segments {
		held[ordinal] = r.heldBlocksOf(int32(ordinal))
	}
	isHeld := make([]bool, len(p.blocks))
	for _, block := range slices.Concat(held...) {
		isHeld[block.id] = true
	}
	p.firstUnusedBlock = 0
	for id := uint32(len(p.blocks) - 1); id > 0; id-- {
		p.rareFields[id].isKept = false
		if !isHeld[id] {
			r.uses.removeUses(&p.rareFields[id])
			p.dropBlock(&p.blocks[id], id)
		}
	}
	p.regions, p.firstUnusedRegion = p.regions[:1], 0
	p.dropAllClasses()
	clear(p.indexes)
	p.mappedBytes = 0
	p.counts = counts{
		peakUsedBytes: p.counts.peakUsedBytes, peakMappedBytes: p.counts.peakMappedBytes,
	}
	r.streams.renumber()
	return held
}

func (r *rebuilder) heldBlocksOf(ordinal int32) (held []heldRecord) {
	p := r.placer
	for id := range p.blocksOf(ordinal) {
		b := &p.blocks[id]
		if b.state() == Live || b.state() == Parked && p.rareFields[id].pins > 0 {
			held = append(held, heldRecord{
				id, p.indexIDOf(b) / 2, b.state() == Live,
				fullRange(p.blockView(id), r.oldFullRanges),
			})
		}
	}
	return held
}

func (r *rebuilder) createRegions(ordinal int32, heldBlocks []heldRecord, keptRanges []Range) {
	s := &r.placer.segments[ordinal]
	s.indexID &= 1 // now stream 0 is the owner; the bit for small requests stays
	owners := r.ownersOf(s, heldBlocks)
	previousID := uint32(0)
	for firstSpan := 0; firstSpan < len(owners); {
		endSpan := firstSpan + 1
		for endSpan < len(owners) && owners[endSpan] == owners[firstSpan] {
			endSpan++
		}
		regionID := r.addRegion(ordinal, owners[firstSpan])
		if previousID == 0 {
			s.firstRegion = regionID
		} else {
			r.placer.regions[previousID].next = regionID
		}
		heldBlocks = r.fillRegion(regionID, Range{
			ordinal, int64(firstSpan) * spanBytes,
			min(int64(endSpan)*spanBytes, s.bytes) - int64(firstSpan)*spanBytes,
		}, heldBlocks, keptRanges)
		previousID, firstSpan = regionID, endSpan
	}
}

// ownersOf returns each span's stream id, and numbers these streams.
func (r *rebuilder) ownersOf(s *segment, heldBlocks []heldRecord) []uint32 {
	owners := make([]uint32, (s.bytes+spanBytes-1)/spanBytes)
	for _, held := range heldBlocks {
		if held.isLive {
			held.eachSpan(func(s spanID) { owners[s.number] = held.streamID })
			r.streams.assignNumber(held.streamID)
		}
	}
	return owners
}

func (r *rebuilder) addRegion(ordinal int32, streamID uint32) uint32 {
	p := r.placer
	s, regionID, sentinelID := &p.segments[ordinal], p.newRegion(), p.newBlock()
	indexID := 2*streamID + s.indexID&1
	p.regions[regionID] = region{
		origin: s.base, dirtyEnd: s.base, reservedEnd: s.base,
		ordinal: ordinal, indexID: indexID, sentinel: sentinelID,
		owner: r.streams.streams[streamID].number,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}
	b := &p.blocks[sentinelID]
	b.packed, b.unitsAndPrev, b.next = uint64(unusedRecord), uint64(sentinelID), sentinelID
	return regionID
}

// fillRegion creates the blocks of a region and returns the remaining held blocks.
func (r *rebuilder) fillRegion(
	regionID uint32, regionRange Range, heldBlocks []heldRecord, keptRanges []Range,
) []heldRecord {
	p := r.placer
	for offset := regionRange.Offset; offset < regionRange.end(); {
		end := regionRange.end()
		if len(heldBlocks) > 0 {
			end = min(end, heldBlocks[0].Offset)
		}
		isKept, boundary := findRange(keptRanges, regionRange.Segment, offset)
		var id uint32
		if end == offset {
			id, end, heldBlocks = heldBlocks[0].id, r.shortenedEnd(heldBlocks[0]), heldBlocks[1:]
		} else {
			id, end = p.newBlock(), min(end, boundary)
		}
		r.appendBlock(regionID, id, Range{regionRange.Segment, offset, end - offset}, isKept)
		offset = end
	}
	region := &p.regions[regionID]
	region.dirtyEnd = max(p.usedEnd(regionID), region.reservedEnd)
	return heldBlocks
}

// shortenedEnd returns the end of a held block's record: for a parked block, the end of its first
// span, because another stream can own the next one.
func (r *rebuilder) shortenedEnd(held heldRecord) int64 {
	end := min(held.end(), (held.Offset/spanBytes+1)*spanBytes)
	if held.isLive || end == held.end() {
		return held.end()
	}
	r.newFullRanges[held.id] = held.Range
	return end
}

// findRange returns the end of the range that contains offset, or the start of the next range.
func findRange(ranges []Range, ordinal int32, offset int64) (isInRange bool, boundary int64) {
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

// appendBlock accepts blocks in any state.
func (r *rebuilder) appendBlock(regionID, id uint32, extent Range, isKept bool) {
	p := r.placer
	region, b, fields := &p.regions[regionID], &p.blocks[id], &p.rareFields[id]
	sentinel := &p.blocks[region.sentinel]
	last := sentinel.prev()
	b.setRange(
		(region.origin+uint64(extent.Offset)>>unitShift)<<idBits|uint64(regionID),
		uint64(extent.Size)>>unitShift)
	b.setPrev(last)
	b.next = region.sentinel
	p.blocks[last].next = id
	sentinel.setPrev(id)
	if fields.isKept = isKept; isKept {
		b.packed |= hasRareFieldsBit
	}
	switch {
	case b.state() >= Live:
	case isKept:
		*fields = rareFields{isKept: true}
		b.packed = uint64(Parked) | hasRareFieldsBit
	default:
		p.insertBlock(p.indexes[region.indexID], b, id, b.units())
		return
	}
	r.countBlock(extent.Segment, b, fields)
}

// For a block in a retired segment, countBlock changes only pinnedBytes.
func (r *rebuilder) countBlock(ordinal int32, b *block, fields *rareFields) {
	counts := &r.placer.counts
	if fields.pins > 0 {
		counts.pinnedBytes += b.size()
	}
	if r.placer.segments[ordinal].isRetired {
		return
	}
	counts.usedBytes += b.size()
	counts.peakUsedBytes = max(counts.peakUsedBytes, counts.usedBytes)
	counts.requestedBytes += b.requested()
	if b.state() == Live {
		counts.liveCount++
	} else {
		counts.parkedBytes += b.size()
	}
}
