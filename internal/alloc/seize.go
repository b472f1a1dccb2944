package alloc

// gap is free memory without a gap: from a position in a region, up to another that may lie in a
// region above.
type gap struct {
	region      uint32
	from, until uint64
}

// bestGap returns the end of the smallest free memory that holds a request, of equal ones the first
// by segment and offset, and region 0 if there is none. Only indexes that may lose some count.
func (l *layout) bestGap(units uint64, may func(home uint32) bool) gap {
	best, least := gap{}, ^uint64(0)
	for i := range l.segments {
		s := &l.segments[i]
		for _, free := range l.gaps(s.first, may) {
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

// gaps lists the free memory of indexes that may lose some, from a region on upwards.
func (l *layout) gaps(first uint32, may func(home uint32) bool) (gaps []gap) {
	open := false
	for r := first; r != 0; r = l.regions[r].next {
		g := &l.regions[r]
		allowed := may(g.home)
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

// move gives free memory to an index, and returns the others that had it.
func (l *layout) move(free gap, home, owner uint32) (had []uint32) {
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
		if h := l.regions[r].home; h != home {
			had = append(had, h)
			l.give(r, home, owner)
		}
		l.regions[r].high = end
		free.from = end
	}
	return had
}
