package alloc

import (
	"cmp"
	"slices"
)

// lifetimes decides when a freed block can be allocated again.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	lastDeferral uint64
	owners       []uint32 // reused result of deferringStreams
}

func (l *lifetimes) indexFor(stream Stream, rounded int64) uint32 {
	if stream != l.recentStream {
		l.selectStream(stream)
	}
	return l.recentIndex + l.config.smallBit(rounded)
}

func (l *lifetimes) selectStream(name Stream) {
	n := l.record(name)
	l.ensureNumber(n)
	l.recentStream, l.recentIndex = name, n*2
}

func (l *lifetimes) record(name Stream) uint32 {
	n, known := l.records[name]
	if !known {
		n = l.addStream(name)
		l.indexes = append(l.indexes, nil, nil)
	}
	return n
}

func (l *lifetimes) beforeFree() {
	if l.reports.filled {
		l.reports.clear()
	}
	if l.hot != 0 {
		l.mergeHotInto(l.indexes[l.hotIndex])
	}
}

func (l *lifetimes) freeInUse(b *block, id uint32) State {
	if l.extras[id].pins > 0 || l.extras[id].kept {
		b.setState(Parked)
		l.counts.parked += b.size()
		return Parked
	}
	return l.freeOrDefer(id)
}

// freeOrDefer frees an unpinned block, or defers it if other streams may still use it.
func (l *lifetimes) freeOrDefer(id uint32) State {
	l.dropCompleteUses(&l.extras[id], l.streams)
	if l.extras[id].firstUse != 0 {
		l.deferFree(id)
		return Deferred
	}
	l.makeFree(&l.blocks[id], id)
	return Free
}

// deferringStreams returns the indexes of the streams that own deferred blocks, by number.
func (l *lifetimes) deferringStreams() []uint32 {
	l.owners = l.owners[:0]
	for s := range l.streams {
		if l.streams[s].firstDeferred != 0 {
			l.owners = append(l.owners, uint32(s))
		}
	}
	slices.SortFunc(l.owners, func(a, b uint32) int {
		return cmp.Compare(l.streams[a].number, l.streams[b].number)
	})
	return l.owners
}

// deferFree queues a deferred block and reports the events that the caller must record.
func (l *lifetimes) deferFree(id uint32) {
	l.lastDeferral++
	l.reports.filled = true
	b, e := &l.blocks[id], &l.extras[id]
	for u := e.firstUse; u != 0; u = l.uses[u].next {
		l.uses[u].seq = l.lastDeferral
		l.reports.toRecord = append(l.reports.toRecord,
			StreamPoint{l.lastDeferral, l.streams[l.uses[u].stream].name})
	}
	s := &l.streams[l.indexOf(b)/2]
	b.setState(Deferred)
	e.prevDeferred, e.nextDeferred = s.lastDeferred, 0
	if s.lastDeferred != 0 {
		l.extras[s.lastDeferred].nextDeferred = id
	} else {
		s.firstDeferred = id
	}
	s.lastDeferred = id
	l.counts.deferred += b.size()
}

// endDeferral ends a deferred block's use on a stream, and frees the block after its last use. It
// does nothing if the block's deferral number is above last.
func (l *lifetimes) endDeferral(id, stream uint32, last uint64) {
	if l.endUse(&l.extras[id], stream, last) && l.extras[id].firstUse == 0 {
		l.reportReturned(id)
		l.freeDeferred(id)
	}
}

func (l *lifetimes) freeDeferred(id uint32) {
	b, e := &l.blocks[id], &l.extras[id]
	s := &l.streams[l.indexOf(b)/2]
	if e.prevDeferred != 0 {
		l.extras[e.prevDeferred].nextDeferred = e.nextDeferred
	} else {
		s.firstDeferred = e.nextDeferred
	}
	if e.nextDeferred != 0 {
		l.extras[e.nextDeferred].prevDeferred = e.prevDeferred
	} else {
		s.lastDeferred = e.prevDeferred
	}
	l.counts.deferred -= b.size()
	l.makeFree(b, id)
}

// freeEarly frees a deferred block whose uses may not be complete yet, and reports the events for
// which the block's stream must wait.
func (l *lifetimes) freeEarly(id uint32) {
	e := &l.extras[id]
	for u := e.firstUse; u != 0; u = l.uses[u].next {
		l.reports.waits = append(l.reports.waits,
			StreamPoint{l.uses[u].seq, l.streams[l.uses[u].stream].name})
	}
	l.dropUses(e)
	l.reportReturned(id)
	l.freeDeferred(id)
}

// reportReturned adds a block to Returned. It must precede makeFree, which may drop the record.
func (l *lifetimes) reportReturned(id uint32) {
	l.reports.filled = true
	r := l.regionOf(&l.blocks[id])
	l.reports.returned = append(l.reports.returned, Return{l.view(id), r.owner})
}

func (l *lifetimes) viewOf(id uint32) View {
	b := &l.blocks[id]
	v := View{
		Block: l.view(id), State: b.state(), Pins: l.extras[id].pins,
		Stream: l.nameOf(l.indexOf(b)),
	}
	if b.state() == Free {
		v.Handle = 0
	}
	return v
}

func (l *lifetimes) segmentView(ordinal int32) Segment {
	s := &l.segments[ordinal]
	return Segment{ordinal, s.bytes, s.address, l.nameOf(s.indexID)}
}
