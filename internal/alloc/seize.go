package alloc

type gap struct {
	region      uint32
	from, until uint64
}

// bestGap returns the end of the smallest gap that holds a request; among gaps of the same
// size, the first by segment and offset. It considers only indexes for which mayLose returns
// true. The result has region 0 if there is no such gap.
func (l *layout) bestGap(units uint64, mayLose func(home uint32) bool) gap {
	best, least := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, free := range l.gaps(s.first, mayLose) {
			if end := s.base + uint64(s.bytes)>>unitShift; free.until < end {
				free.until -= (free.until - s.base) & (spanUnits - 1)
			}
			at, fits := l.regions[free.region].lastSpan(free.from, free.until, units)
			if size := free.until - free.from; fits && size < least {
				best, least = gap{free.region, at, free.until}, size
			}
		}
	}
	return best
}

// gaps returns the free memory, from region first upwards, of the indexes for which mayLose
// returns true.
func (l *layout) gaps(first uint32, mayLose func(home uint32) bool) (gaps []gap) {
	open := false
	for r := first; r != 0; r = l.regions[r].next {
		g := &l.regions[r]
		allowed := mayLose(g.home)
		for id := l.blocks[g.ring].next; id != g.ring; id = l.blocks[id].next {
			b := &l.blocks[id]
			from, end := max(b.position(), g.floor), b.position()+b.units()
			switch {
			case !allowed || b.state() != Free || from >= end:
				open = false
			case open && from == b.position():
				gaps[len(gaps)-1].until = end
			default:
				gaps, open = append(gaps, gap{r, from, end}), true
			}
		}
	}
	return gaps
}

// gapOwners returns the indexes, except home, that own memory in a gap.
func gapOwners(l *layout, free gap, home uint32) (others []uint32) {
	for r := free.region; ; r = l.regions[r].next {
		base, end := l.extent(r)
		if base >= free.until {
			return others
		}
		if h := l.regions[r].home; h != home && end > free.from {
			others = append(others, h)
		}
		if l.regions[r].next == 0 {
			return others
		}
	}
}

func (l *layout) transferGap(free gap, home, owner uint32) {
	for r := free.region; free.from < free.until; r = l.regions[r].next {
		base, end := l.extent(r)
		if end <= free.from {
			continue
		}
		if free.from > base {
			r = l.split(r, free.from)
		}
		if free.until < end {
			l.split(r, free.until)
			end = free.until
		}
		if l.regions[r].home != home {
			l.assign(r, home, owner)
		}
		l.regions[r].high = end
		free.from = end
	}
}
