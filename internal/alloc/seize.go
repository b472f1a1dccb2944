package alloc

// Seize can give memory of stream 2 to stream 1. Suppose that stream 1 needs 5 MiB, and that a
// segment has these regions, which are the parts that belong to one stream:
//
//	region 1, of stream 1    0 to 4 MiB, free from 2 MiB on
//	region 2, of stream 2    4 to 12 MiB, free up to 11 MiB
//
// The free memory from 2 to 11 MiB is a gap, in both regions. A region must start and end at a
// multiple of 2 MiB, so the gap is usable up to 10 MiB. smallestGap therefore returns its last 6
// MiB instead of 5: the gap from 4 to 10 MiB. transferGap splits region 2 at 10 MiB, and assigns
// its first part to stream 1.

// gap is a range of free memory in a segment. It can extend over several neighboring regions.
type gap struct {
	regionID   uint32 // region that contains start, or an earlier region; 0 in the zero gap
	start, end uint64 // positions in units of 512 bytes
}

// smallestGap returns the last part of the smallest gap that is large enough. If there is no such
// gap, it returns the zero gap.
//
// The part has the given number of units, or more if a region cannot start at this distance from
// the end of the gap. Each index belongs to a stream. smallestGap uses only the regions of indexes
// for which canTakeFrom returns true.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		segmentEnd := s.base + uint64(s.bytes)>>unitShift
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			if candidate.end < segmentEnd { // only the segment's last region can end anywhere
				unusableUnits := (candidate.end - s.base) & (spanUnits - 1) // after a multiple of 2 MiB
				candidate.end -= unusableUnits
			}

			// start is the last position that leaves enough units and can be the start of a region.
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

// gaps returns the gaps of a segment, in order. first is the id of the segment's first region, or 0
// if the segment has been removed. Reserved memory, which stays with its stream, is in no gap.
func (l *layout) gaps(first uint32, canTakeFrom func(indexID uint32) bool) (gaps []gap) {
	isAdjacent := false // whether the last gap ends where the current block begins
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

// otherIndexesOf returns the indexes, except indexID, of the regions over which a gap extends.
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
//
// Clean memory is memory that no queued work can use. Other streams could take it again, so none of
// the transferred memory stays clean.
func (l *layout) transferGap(free gap, indexID, owner uint32) {
	start := free.start // of the rest that has not been transferred yet
	for regionID := free.regionID; start < free.end; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if end <= start {
			continue
		}

		if start > base {
			regionID = l.splitRegion(regionID, start) // the new region begins at start
		}

		if free.end < end {
			l.splitRegion(regionID, free.end) // the new region begins after the gap
			end = free.end
		}

		if l.regions[regionID].indexID != indexID {
			l.assignRegion(regionID, indexID, owner)
		}

		l.regions[regionID].dirtyEnd = end // memory is clean only above it
		start = end
	}
}
