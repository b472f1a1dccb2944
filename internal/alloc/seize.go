package alloc

// gap is a range of free memory in a segment, for Core.Seize. A gap can span several regions, which
// are parts of a segment that belong to different streams.
type gap struct {
	regionID   uint32 // start lies in this or a later region; 0 if there is no gap
	start, end uint64 // positions in units of 512 bytes
}

// smallestGap finds the smallest gap in which the given units fit at a multiple of 2 MiB. The
// result begins at the last such multiple. It is zero if no gap fits. canTakeFrom reports whether
// the memory of an index can be taken.
func (l *layout) smallestGap(units uint64, canTakeFrom func(indexID uint32) bool) gap {
	smallest, smallestUnits := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		segmentEnd := s.base + uint64(s.bytes)>>unitShift
		for _, candidate := range l.gaps(s.firstRegion, canTakeFrom) {
			if candidate.end < segmentEnd {
				// All regions except the last must end at multiples of 2 MiB.
				candidate.end -= (candidate.end - s.base) % spanUnits
			}

			region := &l.regions[candidate.regionID]
			start, doesFit := region.lastPosition(candidate.start, candidate.end, units)
			candidateUnits := candidate.end - candidate.start
			if doesFit && candidateUnits < smallestUnits {
				smallest = gap{regionID: candidate.regionID, start: start, end: candidate.end}
				smallestUnits = candidateUnits
			}
		}
	}

	return smallest
}

// gaps returns the gaps of a segment in order of position. They exclude reserved memory.
func (l *layout) gaps(firstRegion uint32, canTakeFrom func(indexID uint32) bool) (gaps []gap) {
	for regionID := firstRegion; regionID != 0; regionID = l.regions[regionID].next {
		region := &l.regions[regionID]
		if !canTakeFrom(region.indexID) {
			continue
		}

		for id := l.blocks[region.sentinel].next; id != region.sentinel; id = l.blocks[id].next {
			b := &l.blocks[id]
			start := max(b.position(), region.reservedEnd)
			end := b.position() + b.units()
			isTakable := b.state() == Free && start < end
			if !isTakable {
				continue
			}

			last := len(gaps) - 1
			isAdjacent := last >= 0 && gaps[last].end == start
			if isAdjacent {
				gaps[last].end = end
			} else {
				gaps = append(gaps, gap{regionID: regionID, start: start, end: end})
			}
		}
	}

	return gaps
}

// otherIndexesOf returns the index ids, except indexID, of the regions that a gap spans.
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

// transferGap moves a gap to a stream's index, as dirty memory. owner is the number of the stream.
func (l *layout) transferGap(g gap, indexID, owner uint32) {
	start := g.start
	for regionID := g.regionID; start < g.end; regionID = l.regions[regionID].next {
		base, end := l.regionBounds(regionID)
		isBeforeGap := end <= start
		if isBeforeGap {
			continue
		}

		if start > base {
			regionID = l.splitRegion(regionID, start) // the part from start on
		}

		if g.end < end {
			l.splitRegion(regionID, g.end) // regionID remains the part before g.end
			end = g.end
		}

		if l.regions[regionID].indexID != indexID {
			l.assignRegion(regionID, indexID, owner)
		}

		l.regions[regionID].dirtyEnd = end
		start = end
	}
}
