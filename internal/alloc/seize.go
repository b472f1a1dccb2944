package alloc

type gap struct {
	region     uint32
	start, end uint64
}

// bestGap returns the end of the smallest gap that is large enough for a request. It considers only
// indexes for which mayLose returns true. Without such a gap, the result has region 0.
func (l *layout) bestGap(units uint64, mayLose func(indexID uint32) bool) gap {
	best, bestSize := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, free := range l.gaps(s.first, mayLose) {
			if end := s.base + uint64(s.bytes)>>unitShift; free.end < end {
				free.end -= (free.end - s.base) & (spanUnits - 1)
			}
			position, fits := l.regions[free.region].lastFit(free.start, free.end, units)
			if size := free.end - free.start; fits && size < bestSize {
				best, bestSize = gap{free.region, position, free.end}, size
			}
		}
	}
	return best
}

// gaps returns the free memory in region first and in the regions that follow it in the segment.
func (l *layout) gaps(first uint32, mayLose func(indexID uint32) bool) (gaps []gap) {
	extends := false // whether the next free block may extend the last gap
	for regionID := first; regionID != 0; regionID = l.regions[regionID].next {
		region := &l.regions[regionID]
		allowed := mayLose(region.indexID)
		for id := l.blocks[region.ring].next; id != region.ring; id = l.blocks[id].next {
			b := &l.blocks[id]
			start, end := max(b.position(), region.reservedEnd), b.position()+b.units()
			switch {
			case !allowed || b.state() != Free || start >= end:
				extends = false
			case extends && start == b.position():
				gaps[len(gaps)-1].end = end
			default:
				gaps, extends = append(gaps, gap{regionID, start, end}), true
			}
		}
	}
	return gaps
}

// gapOwners returns the other indexes that own memory in a gap.
func gapOwners(l *layout, free gap, indexID uint32) (others []uint32) {
	for regionID := free.region; ; regionID = l.regions[regionID].next {
		base, end := l.extent(regionID)
		if base >= free.end {
			return others
		}
		if h := l.regions[regionID].indexID; h != indexID && end > free.start {
			others = append(others, h)
		}
		if l.regions[regionID].next == 0 {
			return others
		}
	}
}

func (l *layout) transferGap(free gap, indexID, owner uint32) {
	for regionID := free.region; free.start < free.end; regionID = l.regions[regionID].next {
		base, end := l.extent(regionID)
		if end <= free.start {
			continue
		}
		if free.start > base {
			regionID = l.split(regionID, free.start)
		}
		if free.end < end {
			l.split(regionID, free.end)
			end = free.end
		}
		if l.regions[regionID].indexID != indexID {
			l.assign(regionID, indexID, owner)
		}
		l.regions[regionID].dirtyEnd = end
		free.start = end
	}
}
