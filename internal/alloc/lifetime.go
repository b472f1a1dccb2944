package alloc

import (
	"cmp"
	"slices"
)

// lifetimes decides when the memory of a freed block can be allocated again.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	deferralCount    uint64
	deferringStreams []uint32 // reused result of streamsWithDeferrals
}

func (l *lifetimes) indexFor(stream Stream, rounded int64) uint32 {
	if stream != l.selectedStream {
		l.selectStream(stream)
	}
	return l.selectedIndex + l.config.smallIndexBit(rounded)
}

func (l *lifetimes) selectStream(name Stream) {
	streamID := l.ensureStream(name)
	l.assignNumber(streamID)
	l.selectedStream, l.selectedIndex = name, streamID*2
}

func (l *lifetimes) ensureStream(name Stream) uint32 {
	streamID, known := l.streamIDs[name]
	if !known {
		streamID = l.addStream(name)
		l.indexes = append(l.indexes, nil, nil)
	}
	return streamID
}

func (l *lifetimes) prepareFree() {
	if l.reports.hasEntries {
		l.reports.clear()
	}
	if l.lastFreed != 0 {
		l.mergeLastFreedInto(l.indexes[l.lastFreedIndex])
	}
}

func (l *lifetimes) freeOrPark(b *block, id uint32) State {
	if l.rareFields[id].pins > 0 || l.rareFields[id].isKept {
		b.setState(Parked)
		l.counts.parkedBytes += b.size()
		return Parked
	}
	return l.freeOrDefer(id)
}

// freeOrDefer frees an unpinned block, or defers it if other streams can still use it.
func (l *lifetimes) freeOrDefer(id uint32) State {
	l.dropCompleteUses(&l.rareFields[id], l.streams)
	if l.rareFields[id].firstUse != 0 {
		l.deferFree(id)
		return Deferred
	}
	l.makeFree(&l.blocks[id], id)
	return Free
}

// streamsWithDeferrals returns the ids of the streams that own deferred blocks, sorted by number.
func (l *lifetimes) streamsWithDeferrals() []uint32 {
	l.deferringStreams = l.deferringStreams[:0]
	for s := range l.streams {
		if l.streams[s].firstDeferred != 0 {
			l.deferringStreams = append(l.deferringStreams, uint32(s))
		}
	}
	slices.SortFunc(l.deferringStreams, func(a, b uint32) int {
		return cmp.Compare(l.streams[a].number, l.streams[b].number)
	})
	return l.deferringStreams
}

// deferFree adds a block to its stream's list of deferred blocks, and to EventsToRecord.
func (l *lifetimes) deferFree(id uint32) {
	l.deferralCount++
	l.reports.hasEntries = true
	b, e := &l.blocks[id], &l.rareFields[id]
	for u := e.firstUse; u != 0; u = l.uses[u].next {
		l.uses[u].seq = l.deferralCount
		l.reports.toRecord = append(l.reports.toRecord,
			StreamPoint{l.deferralCount, l.streams[l.uses[u].stream].name})
	}
	s := &l.streams[l.indexIDOf(b)/2]
	b.setState(Deferred)
	e.prevDeferred, e.nextDeferred = s.lastDeferred, 0
	if s.lastDeferred != 0 {
		l.rareFields[s.lastDeferred].nextDeferred = id
	} else {
		s.firstDeferred = id
	}
	s.lastDeferred = id
	l.counts.deferredBytes += b.size()
}

// endDeferral ends a deferred block's use on a stream, and frees the block after its last use. It
// does nothing if the block's deferral number is above lastDeferral.
func (l *lifetimes) endDeferral(id, stream uint32, lastDeferral uint64) {
	if l.endUseOnStream(&l.rareFields[id], stream, lastDeferral) && l.rareFields[id].firstUse == 0 {
		l.reportReturned(id)
		l.freeDeferred(id)
	}
}

func (l *lifetimes) freeDeferred(id uint32) {
	b, e := &l.blocks[id], &l.rareFields[id]
	s := &l.streams[l.indexIDOf(b)/2]
	if e.prevDeferred != 0 {
		l.rareFields[e.prevDeferred].nextDeferred = e.nextDeferred
	} else {
		s.firstDeferred = e.nextDeferred
	}
	if e.nextDeferred != 0 {
		l.rareFields[e.nextDeferred].prevDeferred = e.prevDeferred
	} else {
		s.lastDeferred = e.prevDeferred
	}
	l.counts.deferredBytes -= b.size()
	l.makeFree(b, id)
}

// freeAndReportWaits frees a deferred block before its uses are complete. It adds the events for
// which the block's stream must wait to Waits.
func (l *lifetimes) freeAndReportWaits(id uint32) {
	e := &l.rareFields[id]
	for u := e.firstUse; u != 0; u = l.uses[u].next {
		l.reports.waits = append(l.reports.waits,
			StreamPoint{l.uses[u].seq, l.streams[l.uses[u].stream].name})
	}
	l.dropUses(e)
	l.reportReturned(id)
	l.freeDeferred(id)
}

// reportReturned adds a block to Returned. It must precede makeFree, which can drop the record.
func (l *lifetimes) reportReturned(id uint32) {
	l.reports.hasEntries = true
	r := l.regionOf(&l.blocks[id])
	l.reports.returned = append(l.reports.returned, Return{l.blockView(id), r.owner})
}

func (l *lifetimes) stateView(id uint32) View {
	b := &l.blocks[id]
	view := View{
		Block: l.blockView(id), State: b.state(), Pins: l.rareFields[id].pins,
		Stream: l.nameOfIndex(l.indexIDOf(b)),
	}
	if b.state() == Free {
		view.Handle = 0
	}
	return view
}

func (l *lifetimes) segmentView(ordinal int32) Segment {
	s := &l.segments[ordinal]
	return Segment{ordinal, s.bytes, s.address, l.nameOfIndex(s.indexID)}
}
