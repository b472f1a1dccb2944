package alloc

import "iter"

// region describes a part of a segment whose blocks serve one stream. Regions cover the segment.
// Blocks are merged only within a region.
//
// Memory above dirtyEnd is clean: it has not been allocated since the owner's work was last known
// to be complete, so all streams can use it without waiting.
type region struct {
	origin      uint64
	dirtyEnd    uint64 // at or below the first unit if the region is clean
	ordinal     int32
	indexID     uint32
	owner       uint32
	sentinel    uint32 // end of the list of blocks; 0 in an unused record
	reservedEnd uint64
	next        uint32
}

// spanUnits is the granularity of regions in units. A segment's last region may have any size.
const spanUnits = uint64(2*mib) >> unitShift

type layout struct {
	freeBlocks
	segments          []segment
	regions           []region // index 0 means no region
	firstUnusedRegion uint32
	indexes           []*sizeIndex // two per stream (large and small requests); nil until needed
}

func (l *layout) regionOf(b *block) *region { return &l.regions[b.region()] }

func (l *layout) indexIDOf(b *block) uint32 { return l.regionOf(b).indexID }

func (l *layout) blockView(id uint32) Block {
	b := &l.blocks[id]
	return l.regionOf(b).blockView(b, id)
}

func (l *layout) blocksOf(ordinal int32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		if ordinal < 0 || int(ordinal) >= len(l.segments) {
			return
		}

		regionID := l.segments[ordinal].firstRegion
		for ; regionID != 0; regionID = l.regions[regionID].next {
			sentinel := l.regions[regionID].sentinel
			for id := l.blocks[sentinel].next; id != sentinel; id = l.blocks[id].next {
				if !yield(id) {
					return
				}
			}
		}
	}
}

func (r *region) blockView(b *block, id uint32) Block {
	return Block{
		Segment: r.ordinal,
		Offset:  int64(b.position()-r.origin) << unitShift,
		Size:    b.size(),
		Handle:  makeHandle(id, b.generation),
	}
}

// newRegion can reallocate l.regions.
func (l *layout) newRegion() uint32 {
	if regionID := l.firstUnusedRegion; regionID != 0 {
		l.firstUnusedRegion = l.regions[regionID].next
		return regionID
	}

	l.regions = append(l.regions, region{})
	return uint32(len(l.regions) - 1)
}

func (l *layout) dropRegion(regionID uint32) {
	l.regions[regionID] = region{next: l.firstUnusedRegion}
	l.firstUnusedRegion = regionID
}

func (l *layout) regionBounds(regionID uint32) (base, end uint64) {
	sentinel := &l.blocks[l.regions[regionID].sentinel]
	last := &l.blocks[sentinel.prev()]
	return l.blocks[sentinel.next].position(), last.position() + last.units()
}

// usedEnd returns the end of a region's last block that is not free.
func (l *layout) usedEnd(regionID uint32) uint64 {
	last := &l.blocks[l.blocks[l.regions[regionID].sentinel].prev()]
	if last.state() == Free {
		return last.position()
	}

	return last.position() + last.units()
}

// firstBlock also reports whether the region is one free block.
func (l *layout) firstBlock(regionID uint32) (id uint32, isRegionFree bool) {
	sentinel := &l.blocks[l.regions[regionID].sentinel]
	id = sentinel.next
	return id, id == sentinel.prev() && l.blocks[id].state() == Free
}

// markClean requires that the stream's queued work is complete.
func (l *layout) markClean(streamID uint32) {
	for r := range l.regions {
		if region := &l.regions[r]; region.sentinel != 0 && streamIDOf(region.indexID) == streamID {
			region.dirtyEnd = max(l.usedEnd(uint32(r)), region.reservedEnd)
		}
	}
}

func (r *region) reserveUpTo(end uint64) {
	r.reservedEnd = max(r.reservedEnd, end)
	r.dirtyEnd = max(r.dirtyEnd, end)
}

// mergeCleanRegions merges clean regions into their predecessors and joins neighbors of one stream.
func (l *layout) mergeCleanRegions() {
	for i := range l.segments {
		for regionID := l.segments[i].firstRegion; regionID != 0; {
			next := l.regions[regionID].next
			switch {
			case next == 0:
				regionID = 0
			case l.isClean(next):
				l.assignRegion(next, l.regions[regionID].indexID, l.regions[regionID].owner)
				l.joinRegions(regionID, regionID)
			case l.regions[next].indexID == l.regions[regionID].indexID:
				l.joinRegions(regionID, regionID)
			default:
				regionID = next
			}
		}
	}
}

func (l *layout) isClean(regionID uint32) bool {
	base, _ := l.regionBounds(regionID)
	return l.regions[regionID].dirtyEnd <= base
}

// takeCleanMemory gives a stream the end of the smallest clean range that is large enough.
func (l *layout) takeCleanMemory(units uint64, indexID, owner uint32) bool {
	if l.isNearlyFull() {
		return false
	}

	smallestID, smallestUnits, start := uint32(0), ^uint64(0), uint64(0)
	for i := range l.segments {
		regionID := l.segments[i].firstRegion
		for ; regionID != 0; regionID = l.regions[regionID].next {
			region := &l.regions[regionID]
			base, end := l.regionBounds(regionID)
			low := max(region.dirtyEnd, base)
			position, isLargeEnough := region.lastPosition(low, end, units)
			if isLargeEnough && end-low < smallestUnits {
				smallestID, smallestUnits, start = regionID, end-low, position
			}
		}
	}

	if smallestID == 0 {
		return false
	}

	l.transferTail(smallestID, start, indexID, owner)
	return true
}

func (l *layout) isNearlyFull() bool {
	return len(l.blocks)+len(l.segments)+len(l.regions) > maxIDs/2
}

// lastPosition returns the last span boundary at which units fit into the range.
func (r *region) lastPosition(low, end, units uint64) (position uint64, doesFit bool) {
	if end < low || end-low < units {
		return 0, false
	}

	position = r.origin + (end-units-r.origin)&^(spanUnits-1)
	return position, position >= low
}

func (l *layout) transferTail(regionID uint32, start uint64, indexID, owner uint32) {
	if base, _ := l.regionBounds(regionID); start > base {
		regionID = l.splitRegion(regionID, start)
	}

	l.assignRegion(regionID, indexID, owner)
	if nextID := l.regions[regionID].next; nextID != 0 && l.regions[nextID].indexID == indexID {
		l.joinRegions(regionID, nextID)
	}
}

func (l *layout) assignRegion(regionID, indexID, owner uint32) {
	region := &l.regions[regionID]
	if l.indexes[indexID] == nil {
		l.indexes[indexID] = new(sizeIndex)
	}

	id, _ := l.firstBlock(regionID)
	b := &l.blocks[id]
	l.removeBlock(l.indexes[region.indexID], b, b.units())
	region.indexID, region.owner, region.reservedEnd = indexID, owner, region.origin
	l.insertBlock(l.indexes[indexID], b, id, b.units())
}

// splitRegion returns the upper part. position may be in a free block.
func (l *layout) splitRegion(regionID uint32, position uint64) uint32 {
	first := l.blockAt(regionID, position)
	upperID, upperSentinel := l.newRegion(), l.newBlock()
	lower, upper := &l.regions[regionID], &l.regions[upperID]
	*upper = *lower
	upper.sentinel = upperSentinel
	lower.next = upperID
	lower.dirtyEnd = min(lower.dirtyEnd, position)
	lower.reservedEnd = min(lower.reservedEnd, position)
	if upper.reservedEnd <= position {
		upper.reservedEnd = upper.origin
	}

	lowerSentinel, b := &l.blocks[lower.sentinel], &l.blocks[first]
	last, before := lowerSentinel.prev(), b.prev()
	l.blocks[upperSentinel].packed = uint64(noState)
	l.blocks[upperSentinel].unitsAndPrev = uint64(last)
	l.blocks[upperSentinel].next = first
	l.blocks[last].next = upperSentinel
	b.setPrev(upperSentinel)
	lowerSentinel.setPrev(before)
	l.blocks[before].next = lower.sentinel
	l.setRegion(first, upperSentinel, upperID)
	return upperID
}

// blockAt splits a free block if no block begins at position.
func (l *layout) blockAt(regionID uint32, position uint64) uint32 {
	region := &l.regions[regionID]
	id := l.blocks[region.sentinel].prev()
	for l.blocks[id].position() > position {
		id = l.blocks[id].prev()
	}

	if l.blocks[id].position() == position {
		return id
	}

	restID := l.newBlock()
	b, restBlock, index := &l.blocks[id], &l.blocks[restID], l.indexes[region.indexID]
	units, nextID := b.units(), b.next
	frontUnits := position - b.position()
	l.removeBlock(index, b, units)
	restBlock.positionAndRegion = b.positionAndRegion + frontUnits<<idBits
	restBlock.unitsAndPrev, restBlock.next = (units-frontUnits)<<idBits|uint64(id), nextID
	b.unitsAndPrev, b.next = frontUnits<<idBits|b.unitsAndPrev&idMask, restID
	l.blocks[nextID].setPrev(restID)
	l.insertBlock(index, b, id, frontUnits)
	l.insertBlock(index, restBlock, restID, units-frontUnits)
	return restID
}

func (l *layout) setRegion(first, end, regionID uint32) {
	for id := first; id != end; id = l.blocks[id].next {
		b := &l.blocks[id]
		b.positionAndRegion = b.positionAndRegion&^idMask | uint64(regionID)
	}
}

// joinRegions merges a region with the next one, of the same stream. keptID should have more
// blocks: joinRegions visits all blocks of the other region.
func (l *layout) joinRegions(regionID, keptID uint32) {
	upperID := l.regions[regionID].next
	lower, upper := &l.regions[regionID], &l.regions[upperID]
	indexID, next := lower.indexID, upper.next
	lowerSentinel, upperSentinel := lower.sentinel, upper.sentinel
	dirtyEnd, reservedEnd := lower.dirtyEnd, lower.reservedEnd
	if base, _ := l.regionBounds(upperID); upper.dirtyEnd > base {
		dirtyEnd, reservedEnd = upper.dirtyEnd, max(reservedEnd, upper.reservedEnd)
	}

	sentinel, dropped := &l.blocks[lowerSentinel], &l.blocks[upperSentinel]
	last, first, end := sentinel.prev(), dropped.next, dropped.prev()
	if keptID == regionID {
		l.setRegion(first, upperSentinel, regionID)
		l.dropRegion(upperID)
	} else {
		l.setRegion(sentinel.next, lowerSentinel, upperID)
		*l.linkToRegion(regionID) = upperID
		upper.sentinel = lowerSentinel
		l.dropRegion(regionID)
	}

	result := &l.regions[keptID]
	result.next, result.dirtyEnd, result.reservedEnd = next, dirtyEnd, reservedEnd
	l.blocks[last].next = first
	l.blocks[first].setPrev(last)
	l.blocks[end].next = lowerSentinel
	sentinel.setPrev(end)
	l.dropBlock(dropped, upperSentinel)
	l.mergeNext(l.indexes[indexID], last)
}

func (l *layout) mergeNext(index *sizeIndex, id uint32) {
	b := &l.blocks[id]
	if b.state() != Free || l.blocks[b.next].state() != Free {
		return
	}

	l.removeBlock(index, b, b.units())
	b.packed = uint64(noState)
	l.mergeBlock(index, b, id, freeNeighbors{isNextFree: true})
}

func (l *layout) linkToRegion(regionID uint32) *uint32 {
	link := &l.segments[l.regions[regionID].ordinal].firstRegion
	for *link != regionID {
		link = &l.regions[*link].next
	}

	return link
}
