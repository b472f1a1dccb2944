package alloc

// gap is a range of free memory in a segment, for Core.Seize. It can span several regions, each the
// part of a segment that belongs to one stream.
type gap struct {
	regionID   uint32 // a region of the segment that begins at or before start, or 0 for no gap
	start, end uint64 // positions in units of 512 bytes
}

// smallestGap returns the last units of the smallest gap that is large enough, or the zero gap. It
// rounds the start of the result down to a multiple of 2 MiB, where regions can start. canTakeFrom
// selects the streams to take from, by the id of their index of free blocks.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		segmentEnd := s.base + uint64(s.bytes)>>unitShift
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			if candidate.end < segmentEnd { // only the segment's last region can end anywhere
				unusableUnits := (candidate.end - s.base) & (spanUnits - 1) // since a multiple of 2 MiB
				candidate.end -= unusableUnits
			}

			start, isLargeEnough := l.regions[candidate.regionID].lastPosition(
				candidate.start, candidate.end, units)
			candidateUnits := candidate.end - candidate.start
			if isLargeEnough && candidateUnits < smallestUnits {
				smallest = gap{regionID: candidate.regionID, start: start, end: candidate.end}
				smallestUnits = candidateUnits
			}
		}
	}

	return smallest
}

// gaps returns the gaps of a segment, in order of position. They exclude memory that Reserve has
// reserved for its stream.
func (l *layout) gaps(firstRegion uint32, canTakeFrom func(indexID uint32) bool) (gaps []gap) {
	isAdjacent := false // whether the last gap ends where the current block begins
	for regionID := firstRegion; regionID != 0; regionID = l.regions[regionID].next {
		region := &l.regions[regionID]
		isAllowed := canTakeFrom(region.indexID)
		for id := l.blocks[region.sentinel].next; id != region.sentinel; id = l.blocks[id].next {
			b := &l.blocks[id]
			start := max(b.position(), region.reservedEnd)
			end := b.position() + b.units()
			isTakable := isAllowed && b.state() == Free && start < end
			isContinued := isAdjacent && start == b.position()
			switch {
			case !isTakable:
				isAdjacent = false
			case isContinued:
				gaps[len(gaps)-1].end = end
			default:
				gaps = append(gaps, gap{regionID: regionID, start: start, end: end})
				isAdjacent = true
			}
		}
	}

	return gaps
}

// otherIndexesOf returns the indexes of the regions that a gap spans, except indexID.
func (l *layout) otherIndexesOf(g gap, indexID uint32) (others []uint32) {
	for regionID := g.regionID; regionID != 0; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if base >= g.end {
			break
		}

		regionIndex := l.regions[regionID].indexID
		if regionIndex != indexID && end > g.start {
			others = append(others, regionIndex)
		}
	}

	return others
}

// transferGap moves the memory of a gap to an index. owner is the number of the index's stream. The
// memory becomes dirty, so that other streams cannot take it back before this stream uses it.
func (l *layout) transferGap(g gap, indexID, owner uint32) {
	start := g.start // of the memory not transferred yet
	for regionID := g.regionID; start < g.end; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if end <= start {
			continue
		}

		if start > base {
			regionID = l.splitRegion(regionID, start) // returns the upper region
		}

		if g.end < end {
			l.splitRegion(regionID, g.end) // regionID remains the lower region
			end = g.end
		}

		if l.regions[regionID].indexID != indexID {
			l.assignRegion(regionID, indexID, owner)
		}

		l.regions[regionID].dirtyEnd = end
		start = end
	}
}
