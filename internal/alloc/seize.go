package alloc

// gap is a range of free memory, in one or more neighboring regions of a segment.
type gap struct {
	regionID   uint32 // region that contains start, or an earlier region; 0 in the zero gap
	start, end uint64 // positions in the arena
}

// smallestGap searches the smallest gap of at least the given number of units, and returns the end
// of it that has this size, or the zero gap. It considers only regions of indexes that canTakeFrom
// permits.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			segmentEnd := s.base + uint64(s.bytes)>>unitShift
			if candidate.end < segmentEnd { // regions must end at a span boundary
				candidate.end -= (candidate.end - s.base) & (spanUnits - 1)
			}
			position, isLargeEnough := l.regions[candidate.regionID].lastPosition(
				candidate.start, candidate.end, units)
			candidateUnits := candidate.end - candidate.start
			if isLargeEnough && candidateUnits < smallestUnits {
				smallest = gap{candidate.regionID, position, candidate.end}
				smallestUnits = candidateUnits
			}
		}
	}
	return smallest
}

// gaps returns the gaps in the region first and the later regions of its segment. Reserved memory
// is not part of a gap.
func (l *layout) gaps(first uint32, canTakeFrom func(indexID uint32) bool) (gaps []gap) {
	isAdjacent := false // whether the last gap ends at the current block
	for regionID := first; regionID != 0; regionID = l.regions[regionID].next {
		region := &l.regions[regionID]
		isAllowed := canTakeFrom(region.indexID)
		for id := l.blocks[region.sentinel].next; id != region.sentinel; id = l.blocks[id].next {
			b := &l.blocks[id]
			start, end := max(b.position(), region.reservedEnd), b.position()+b.units()
			switch {
			case !isAllowed || b.state() != Free || start >= end:
				isAdjacent = false
			case isAdjacent && start == b.position():
				gaps[len(gaps)-1].end = end
			default:
				gaps = append(gaps, gap{regionID, start, end})
				isAdjacent = true
			}
		}
	}
	return gaps
}

// gapOwners returns the index of each region that has memory in a gap, except indexID.
func gapOwners(l *layout, free gap, indexID uint32) (owners []uint32) {
	for regionID := free.regionID; ; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if base >= free.end {
			return owners
		}
		if owner := l.regions[regionID].indexID; owner != indexID && end > free.start {
			owners = append(owners, owner)
		}
		if l.regions[regionID].next == 0 {
			return owners
		}
	}
}

// transferGap gives the memory of a gap to an index. owner is the number of the index's stream.
// The memory is not clean.
func (l *layout) transferGap(free gap, indexID, owner uint32) {
	for regionID := free.regionID; free.start < free.end; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if end <= free.start {
			continue
		}
		if free.start > base {
			regionID = l.splitRegion(regionID, free.start)
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
