package alloc

type gap struct {
	regionID   uint32
	start, end uint64
}

// smallestGap returns the end of the smallest gap that is large enough, in indexes that canTakeFrom
// permits, or the zero gap.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			if end := s.base + uint64(s.bytes)>>unitShift; candidate.end < end {
				candidate.end -= (candidate.end - s.base) & (spanUnits - 1)
			}
			position, isLargeEnough := l.regions[candidate.regionID].lastPosition(
				candidate.start, candidate.end, units)
			if size := candidate.end - candidate.start; isLargeEnough && size < smallestUnits {
				smallest, smallestUnits = gap{candidate.regionID, position, candidate.end}, size
			}
		}
	}
	return smallest
}

// gaps returns the gaps in a segment from the region first on.
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
				gaps, isAdjacent = append(gaps, gap{regionID, start, end}), true
			}
		}
	}
	return gaps
}

// gapOwners returns the owners of memory in a gap, except indexID.
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
