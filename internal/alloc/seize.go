package alloc

type gap struct {
	region     uint32
	start, end uint64 // positions
}

// bestGap finds the smallest gap that is large enough for a request, and returns the part at its
// end that is to be used. Among gaps of the same size, it chooses the first by segment and offset.
// It considers only memory of indexes for which mayLose returns true. If there is no such gap, the
// result has region 0.
func (l *layout) bestGap(units uint64, mayLose func(home uint32) bool) gap {
	best, bestSize := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, free := range l.gaps(s.first, mayLose) {
			if end := s.base + uint64(s.bytes)>>unitShift; free.end < end {
				free.end -= (free.end - s.base) & (spanUnits - 1)
			}
			position, fits := l.regions[free.region].lastSpan(free.start, free.end, units)
			if size := free.end - free.start; fits && size < bestSize {
				best, bestSize = gap{free.region, position, free.end}, size
			}
		}
	}
	return best
}

// gaps returns the free memory in region first and in the regions that follow it in the segment.
// It considers only memory of indexes for which mayLose returns true.
func (l *layout) gaps(first uint32, mayLose func(home uint32) bool) (gaps []gap) {
	extends := false // whether the next free block may extend the last gap
	for r := first; r != 0; r = l.regions[r].next {
		g := &l.regions[r]
		allowed := mayLose(g.home)
		for id := l.blocks[g.ring].next; id != g.ring; id = l.blocks[id].next {
			b := &l.blocks[id]
			start, end := max(b.position(), g.floor), b.position()+b.units()
			switch {
			case !allowed || b.state() != Free || start >= end:
				extends = false
			case extends && start == b.position():
				gaps[len(gaps)-1].end = end
			default:
				gaps, extends = append(gaps, gap{r, start, end}), true
			}
		}
	}
	return gaps
}

// gapOwners returns the numbers of the indexes, except for home, that own memory in a gap.
func gapOwners(l *layout, free gap, home uint32) (others []uint32) {
	for r := free.region; ; r = l.regions[r].next {
		base, end := l.extent(r)
		if base >= free.end {
			return others
		}
		if h := l.regions[r].home; h != home && end > free.start {
			others = append(others, h)
		}
		if l.regions[r].next == 0 {
			return others
		}
	}
}

func (l *layout) transferGap(free gap, home, owner uint32) {
	for r := free.region; free.start < free.end; r = l.regions[r].next {
		base, end := l.extent(r)
		if end <= free.start {
			continue
		}
		if free.start > base {
			r = l.split(r, free.start)
		}
		if free.end < end {
			l.split(r, free.end)
			end = free.end
		}
		if l.regions[r].home != home {
			l.assign(r, home, owner)
		}
		l.regions[r].high = end
		free.start = end
	}
}
