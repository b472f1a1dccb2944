package alloc

import "slices"

// rebuilder performs one call of Core.Rebuild.
type rebuilder struct {
	placer                       *placer
	streams                      *streamTable
	uses                         *useTable
	keptRanges                   []Range          // see Arrangement.KeptRanges; sorted
	oldFullRanges, newFullRanges map[uint32]Range // Core.fullRanges before and after the call
}

// heldRecord describes a held block: one that is live, or parked with pins.
type heldRecord struct {
	id       uint32
	streamID uint32 // stream that owned the block before Rebuild
	isLive   bool
	Range    // full range of the block; see fullRange
}

// fullRange returns the range of a block, including any part that an earlier Rebuild cut off.
// fullRanges is Core.fullRanges.
func fullRange(b Block, fullRanges map[uint32]Range) Range {
	if r, isShortened := fullRanges[uint32(b.Handle)]; isShortened {
		return r
	}

	return Range{b.Segment, b.Offset, b.Size}
}

// rebuildResult is the state of a segment after Rebuild.
type rebuildResult uint8

const (
	segmentAbsent  rebuildResult = iota // not mapped on this rank
	segmentUsable                       // serves requests
	segmentRetired                      // has blocks, but serves no requests
	segmentEmpty                        // has no blocks and can be unmapped
)

// rebuildSegment creates the regions and blocks of a segment. extent describes the segment in the
// Arrangement, where 0 bytes mean that it must be retired. heldBlocks are sorted by offset.
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

// dropAllButHeld drops all regions, and all blocks that are not held. It returns the held blocks
// by segment ordinal and offset.
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
				id, streamIDOf(p.indexIDOf(b)), b.state() == Live,
				fullRange(p.blockView(id), r.oldFullRanges),
			})
		}
	}

	return held
}

// createRegions divides a segment into regions of spans with the same owner, and fills them with
// blocks.
func (r *rebuilder) createRegions(ordinal int32, heldBlocks []heldRecord, keptRanges []Range) {
	s := &r.placer.segments[ordinal]
	s.indexID &= 1 // stream 0's index, for requests as small as before
	owners := r.assignOwners(s, heldBlocks)
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

// assignOwners returns the id of the stream that owns each span: the stream of the span's live
// blocks, or 0. It also numbers these streams.
func (r *rebuilder) assignOwners(s *segment, heldBlocks []heldRecord) []uint32 {
	owners := make([]uint32, (s.bytes+spanBytes-1)/spanBytes)
	for _, held := range heldBlocks {
		if held.isLive {
			r.streams.assignNumber(held.streamID)
			for _, span := range held.spans() {
				owners[span.number] = held.streamID
			}
		}
	}

	return owners
}

func (r *rebuilder) addRegion(ordinal int32, streamID uint32) uint32 {
	p := r.placer
	s := &p.segments[ordinal]
	regionID := p.newRegion()
	sentinelID := p.newBlock()
	indexID := 2*streamID + s.indexID&1
	p.regions[regionID] = region{
		origin: s.base, dirtyEnd: s.base, reservedEnd: s.base,
		ordinal: ordinal, indexID: indexID, sentinel: sentinelID,
		owner: r.streams.streams[streamID].number,
	}
	if p.indexes[indexID] == nil {
		p.indexes[indexID] = new(sizeIndex)
	}

	// An empty list: the sentinel is its own neighbor, and has no units.
	sentinel := &p.blocks[sentinelID]
	sentinel.packed = uint64(noState)
	sentinel.unitsAndPrev = uint64(sentinelID)
	sentinel.next = sentinelID
	return regionID
}

// fillRegion adds the held blocks that begin in a region, and creates blocks between them. It
// returns the remaining held blocks.
func (r *rebuilder) fillRegion(
	regionID uint32, regionRange Range, heldBlocks []heldRecord, keptRanges []Range,
) []heldRecord {
	p := r.placer
	for offset := regionRange.Offset; offset < regionRange.end(); {
		end := regionRange.end()
		if len(heldBlocks) > 0 {
			end = min(end, heldBlocks[0].Offset)
		}

		isKept, boundary := checkKept(keptRanges, regionRange.Segment, offset)
		var id uint32
		if end == offset {
			id = heldBlocks[0].id
			end = r.shortenBlock(heldBlocks[0])
			heldBlocks = heldBlocks[1:]
		} else {
			id = p.newBlock()
			end = min(end, boundary)
		}

		r.appendBlock(regionID, id, Range{regionRange.Segment, offset, end - offset}, isKept)
		offset = end
	}

	region := &p.regions[regionID]
	region.dirtyEnd = max(p.usedEnd(regionID), region.reservedEnd)
	return heldBlocks
}

// shortenBlock returns the end of a held block after Rebuild. A parked block ends at the latest
// with its first span, because another stream can own the next span. If this cuts off a part,
// shortenBlock records the full range.
func (r *rebuilder) shortenBlock(held heldRecord) int64 {
	end := min(held.end(), (held.Offset/spanBytes+1)*spanBytes)
	if held.isLive || end == held.end() {
		return held.end()
	}

	r.newFullRanges[held.id] = held.Range
	return end
}

// checkKept reports whether an offset of a segment is in one of the sorted ranges. boundary is the
// end of this range or else the start of the next range, or MaxSize if the segment has no more.
func checkKept(ranges []Range, ordinal int32, offset int64) (isKept bool, boundary int64) {
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

// appendBlock adds a block at the end of a region. A held block keeps its state. A new block
// becomes parked if isKept is true, and free otherwise.
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
	fields.isKept = isKept
	if isKept {
		b.packed |= hasRareFieldsBit
	}

	isHeld := b.state() >= Live
	switch {
	case isHeld:
	case isKept:
		*fields = rareFields{isKept: true}
		b.packed = uint64(Parked) | hasRareFieldsBit
	default:
		p.insertBlock(p.indexes[region.indexID], b, id, b.units())
		return
	}

	r.countBlock(extent.Segment, b, fields)
}

// countBlock adds a live or parked block to the counts. A block in a retired segment counts only
// towards pinnedBytes.
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
