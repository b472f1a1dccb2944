package alloc

import (
	"cmp"
	"slices"
)

// lifetimes decides when a freed block can be allocated again: immediately, once other streams no
// longer use the block, or once no graph pins it.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	deferrals uint64   // number of the latest deferral
	owners    []uint32 // reused result of deferringStreams
}

// homeFor returns the number of the index that serves requests of this size on a stream.
func (l *lifetimes) homeFor(stream Stream, rounded int64) uint32 {
	if stream != l.recent {
		l.selectStream(stream)
	}
	return l.current + l.config.smallBit(rounded)
}

func (l *lifetimes) selectStream(name Stream) {
	n := l.record(name)
	l.ensureNumber(n)
	l.recent, l.current = name, n*2
}

func (l *lifetimes) record(name Stream) uint32 {
	n, known := l.records[name]
	if !known {
		n = l.addStream(name)
		l.homes = append(l.homes, nil, nil)
	}
	return n
}

func (l *lifetimes) beforeFree() {
	if l.reports.filled {
		l.reports.clear()
	}
	if l.hot != 0 {
		l.cool(l.homes[l.hotHome])
	}
}

// freeHeld frees a block that may be pinned or used on other streams, and returns its new state.
func (l *lifetimes) freeHeld(b *block, id uint32) State {
	if l.sides[id].pins > 0 || l.sides[id].kept {
		b.setState(Parked)
		l.counts.parked += b.size()
		return Parked
	}
	return l.release(id)
}

// release frees an unpinned block, or defers it if other streams may still use it, and returns the
// new state.
func (l *lifetimes) release(id uint32) State {
	l.forgetSynced(&l.sides[id], l.streams)
	if l.sides[id].uses != 0 {
		l.deferFree(id)
		return Deferred
	}
	l.makeFree(&l.blocks[id], id)
	return Free
}

// deferringStreams returns the record indexes of the streams that own deferred blocks, ordered by
// stream number.
func (l *lifetimes) deferringStreams() []uint32 {
	l.owners = l.owners[:0]
	for s := range l.streams {
		if l.streams[s].first != 0 {
			l.owners = append(l.owners, uint32(s))
		}
	}
	slices.SortFunc(l.owners, func(a, b uint32) int {
		return cmp.Compare(l.streams[a].number, l.streams[b].number)
	})
	return l.owners
}

// deferFree appends a block to its stream's queue of deferred blocks and reports the events that
// the caller must record.
func (l *lifetimes) deferFree(id uint32) {
	l.deferrals++
	l.reports.filled = true
	b, h := &l.blocks[id], &l.sides[id]
	for u := h.uses; u != 0; u = l.uses[u].next {
		l.uses[u].seq = l.deferrals
		l.reports.toRecord = append(l.reports.toRecord,
			StreamPoint{l.deferrals, l.streams[l.uses[u].stream].name})
	}
	s := &l.streams[l.homeOf(b)/2]
	b.setState(Deferred)
	h.before, h.after = s.last, 0
	if s.last != 0 {
		l.sides[s.last].after = id
	} else {
		s.first = id
	}
	s.last = id
	l.counts.deferred += b.size()
}

// endDeferral ends a deferred block's use on a stream. If this was the block's last use, the
// block becomes free. endDeferral does nothing if the block's deferral number is above last.
func (l *lifetimes) endDeferral(id, stream uint32, last uint64) {
	if l.endUse(&l.sides[id], stream, last) && l.sides[id].uses == 0 {
		l.reportReturned(id)
		l.unqueue(id)
	}
}

// unqueue removes a deferred block from its queue and makes it free.
func (l *lifetimes) unqueue(id uint32) {
	b, h := &l.blocks[id], &l.sides[id]
	s := &l.streams[l.homeOf(b)/2]
	if h.before != 0 {
		l.sides[h.before].after = h.after
	} else {
		s.first = h.after
	}
	if h.after != 0 {
		l.sides[h.after].before = h.before
	} else {
		s.last = h.before
	}
	l.counts.deferred -= b.size()
	l.makeFree(b, id)
}

// freeEarly frees a deferred block whose uses may not be complete yet, and reports the events for
// which the block's stream must wait.
func (l *lifetimes) freeEarly(id uint32) {
	h := &l.sides[id]
	for u := h.uses; u != 0; u = l.uses[u].next {
		l.reports.waits = append(l.reports.waits,
			StreamPoint{l.uses[u].seq, l.streams[l.uses[u].stream].name})
	}
	l.forgetUses(h)
	l.reportReturned(id)
	l.unqueue(id)
}

// reportReturned adds a block to Returned. It must be called before makeFree, which may drop the
// record.
func (l *lifetimes) reportReturned(id uint32) {
	l.reports.filled = true
	r := l.regionOf(&l.blocks[id])
	l.reports.returned = append(l.reports.returned, Return{l.view(id), r.owner})
}

func (l *lifetimes) viewOf(id uint32) View {
	b := &l.blocks[id]
	v := View{
		Block: l.view(id), State: b.state(), Pins: l.sides[id].pins,
		Stream: l.nameOf(l.homeOf(b)),
	}
	if b.state() == Free {
		v.Handle = 0
	}
	return v
}

func (l *lifetimes) segmentView(ordinal int32) Segment {
	s := &l.segments[ordinal]
	return Segment{ordinal, s.bytes, s.address, l.nameOf(s.home)}
}
