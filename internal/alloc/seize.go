package alloc

// gap is a range of free memory, in one or more neighboring regions of a segment. A region is a
// part of a segment whose memory belongs to one stream.
type gap struct {
	regionID   uint32 // region that contains start, or an earlier region; 0 in the zero gap
	start, end uint64 // positions in the arena, in units
}

// smallestGap searches for the smallest gap of at least the given number of units. It returns a
// part of this size at the end of the gap, or a slightly larger part if a region cannot start
// there. If there is no such gap, it returns the zero gap. It considers only regions of indexes
// that canTakeFrom permits.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			segmentEnd := s.base + uint64(s.bytes)>>unitShift
			if candidate.end < segmentEnd {
				// Regions must end at a multiple of spanUnits (2 MiB) or at the end of the segment.
				candidate.end -= (candidate.end - s.base) & (spanUnits - 1)
			}

			position, isLargeEnough := l.regions[candidate.regionID].lastPosition(
				candidate.start, candidate.end, units)
			candidateUnits := candidate.end - candidate.start
			if isLargeEnough && candidateUnits < smallestUnits {
				smallest = gap{
					regionID: candidate.regionID, start: position, end: candidate.end,
				}
				smallestUnits = candidateUnits
			}
		}
	}

	return smallest
}

// gaps returns the gaps in the region with the id first and in the later regions of its segment.
// Reserved memory is not part of a gap.
func (l *layout) gaps(first uint32, canTakeFrom func(indexID uint32) bool) (gaps []gap) {
	isAdjacent := false // whether the last gap ends at the current block
	for regionID := first; regionID != 0; regionID = l.regions[regionID].next {
		region := &l.regions[regionID]
		isAllowed := canTakeFrom(region.indexID)
		for id := l.blocks[region.sentinel].next; id != region.sentinel; id = l.blocks[id].next {
			b := &l.blocks[id]
			start := max(b.position(), region.reservedEnd) // reserved memory is below reservedEnd
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

// otherIndexesOf returns the index of each region that has memory in a gap, except indexID.
func (l *layout) otherIndexesOf(free gap, indexID uint32) (others []uint32) {
	for regionID := free.regionID; regionID != 0; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if base >= free.end {
			break
		}

		regionIndex := l.regions[regionID].indexID
		if regionIndex != indexID && end > free.start {
			others = append(others, regionIndex)
		}
	}

	return others
}

// transferGap gives the memory of a gap to an index. owner is the number of the index's stream.
// The memory is marked as not clean, because queued work can still use it.
func (l *layout) transferGap(free gap, indexID, owner uint32) {
	// Each iteration moves free.start to the end of the region that it has transferred.
	for regionID := free.regionID; free.start < free.end; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if end <= free.start {
			continue
		}

		if free.start > base {
			regionID = l.splitRegion(regionID, free.start) // the new region starts at free.start
		}

		if free.end < end {
			l.splitRegion(regionID, free.end)
			end = free.end
		}

		if l.regions[regionID].indexID != indexID {
			l.assignRegion(regionID, indexID, owner)
		}

		l.regions[regionID].dirtyEnd = end
		free.start = end
	}
}
