package alloc

// gap is a range of free memory in a segment, for Core.Seize. A gap can span several regions, which
// are parts of a segment that belong to different streams.
type gap struct {
	regionID   uint32 // a region at or before start; 0 if there is no gap
	start, end uint64 // positions in units of 512 bytes
}

// smallestGap finds the smallest gap that is large enough, and returns its last units, or the zero
// gap. The result can exceed units, because it starts at a multiple of 2 MiB, as all regions do.
// canTakeFrom reports whether the memory of a free-block index can be taken.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		segmentEnd := s.base + uint64(s.bytes)>>unitShift
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			if candidate.end < segmentEnd {
				// Round down: only the last region of a segment can end between multiples of 2 MiB.
				candidate.end -= (candidate.end - s.base) % spanUnits
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

// gaps returns the gaps of a segment, without reserved memory, in order of position.
func (l *layout) gaps(firstRegion uint32, canTakeFrom func(indexID uint32) bool) (gaps []gap) {
	isAdjacent := false // whether the latest gap ends where the current block begins
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

// otherIndexesOf returns the index ids of the regions that a gap spans, except indexID.
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

// transferGap moves the memory of a gap to a stream's index. owner is the number of this stream.
// The memory becomes dirty, so that no other stream takes it before this stream uses it.
func (l *layout) transferGap(g gap, indexID, owner uint32) {
	start := g.start // of the remaining memory
	for regionID := g.regionID; start < g.end; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		if end <= start {
			continue
		}

		if start > base {
			regionID = l.splitRegion(regionID, start) // the upper part
		}

		if g.end < end {
			l.splitRegion(regionID, g.end) // regionID remains the lower part
			end = g.end
		}

		if l.regions[regionID].indexID != indexID {
			l.assignRegion(regionID, indexID, owner)
		}

		l.regions[regionID].dirtyEnd = end
		start = end
	}
}
