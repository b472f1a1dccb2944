package alloc

import (
	"cmp"
	"slices"
)

// lifetimes decides when freed memory can be allocated again.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	deferralCount    uint64   // number of blocks deferred so far
	deferringStreams []uint32 // memory for the result of streamsWithDeferrals
}

// indexFor returns the id of the index that serves requests of a size on a stream. It selects the
// stream.
func (l *lifetimes) indexFor(stream Stream, roundedBytes int64) uint32 {
	if stream != l.selectedStream {
		l.selectStream(stream)
	}
	return l.selectedIndex + l.config.smallIndexBit(roundedBytes)
}

// selectStream makes a stream the one of the latest request, and numbers it if it is new.
func (l *lifetimes) selectStream(stream Stream) {
	streamID := l.ensureStream(stream)
	l.assignNumber(streamID)
	l.selectedStream, l.selectedIndex = stream, streamID*2
}

// ensureStream returns the id of a stream, which it adds if it is unknown.
func (l *lifetimes) ensureStream(stream Stream) uint32 {
	streamID, isKnown := l.streamIDs[stream]
	if !isKnown {
		streamID = l.addStream(stream)
		l.indexes = append(l.indexes, nil, nil)
	}
	return streamID
}

// prepareFree completes the previous call: it clears the reports and merges lastFreed.
func (l *lifetimes) prepareFree() {
	if l.reports.hasEntries {
		l.reports.clear()
	}
	if l.lastFreed != 0 {
		l.mergeLastFreedInto(l.indexes[l.lastFreedIndex])
	}
}

// freeOrPark parks a freed block if it is pinned or kept. Otherwise, it calls freeOrDefer. It
// returns the new state.
func (l *lifetimes) freeOrPark(b *block, id uint32) State {
	if l.rareFields[id].pins > 0 || l.rareFields[id].isKept {
		b.setState(Parked)
		l.counts.parkedBytes += b.size()
		return Parked
	}
	return l.freeOrDefer(id)
}

// freeOrDefer defers a freed block if other streams can still use it. Otherwise, it makes the
// block free. It returns the new state.
func (l *lifetimes) freeOrDefer(id uint32) State {
	l.removeCompleteUses(&l.rareFields[id], l.streams)
	if l.rareFields[id].firstUse != 0 {
		l.deferFree(id)
		return Deferred
	}
	l.makeFree(&l.blocks[id], id)
	return Free
}

// streamsWithDeferrals returns the ids of streams with deferred blocks, sorted by the streams'
// numbers. The result is valid until the next call.
func (l *lifetimes) streamsWithDeferrals() []uint32 {
	l.deferringStreams = l.deferringStreams[:0]
	for id := range l.streams {
		if l.streams[id].firstDeferred != 0 {
			l.deferringStreams = append(l.deferringStreams, uint32(id))
		}
	}
	slices.SortFunc(l.deferringStreams, func(a, b uint32) int {
		return cmp.Compare(l.streams[a].number, l.streams[b].number)
	})
	return l.deferringStreams
}

// deferFree defers a block and reports an event to record for each of its uses.
func (l *lifetimes) deferFree(id uint32) {
	l.deferralCount++
	l.reports.hasEntries = true
	b, fields := &l.blocks[id], &l.rareFields[id]
	for useID := fields.firstUse; useID != 0; useID = l.uses[useID].next {
		l.uses[useID].sequence = l.deferralCount
		l.reports.toRecord = append(l.reports.toRecord,
			StreamPoint{l.deferralCount, l.streams[l.uses[useID].streamID].name})
	}
	owner := &l.streams[l.indexIDOf(b)/2]
	b.setState(Deferred)
	fields.prevDeferred, fields.nextDeferred = owner.lastDeferred, 0
	if owner.lastDeferred != 0 {
		l.rareFields[owner.lastDeferred].nextDeferred = id
	} else {
		owner.firstDeferred = id
	}
	owner.lastDeferred = id
	l.counts.deferredBytes += b.size()
}

// endDeferral ends the use of a deferred block on a stream, and frees the block if this was its
// last use. It does nothing if the number of the deferral is above lastDeferral.
func (l *lifetimes) endDeferral(id, streamID uint32, lastDeferral uint64) {
	fields := &l.rareFields[id]
	if l.removeUse(fields, streamID, lastDeferral) && fields.firstUse == 0 {
		l.reportReturned(id)
		l.freeDeferred(id)
	}
}

// freeDeferred removes a deferred block from its owner's list and makes it free.
func (l *lifetimes) freeDeferred(id uint32) {
	b, fields := &l.blocks[id], &l.rareFields[id]
	owner := &l.streams[l.indexIDOf(b)/2]
	if fields.prevDeferred != 0 {
		l.rareFields[fields.prevDeferred].nextDeferred = fields.nextDeferred
	} else {
		owner.firstDeferred = fields.nextDeferred
	}
	if fields.nextDeferred != 0 {
		l.rareFields[fields.nextDeferred].prevDeferred = fields.prevDeferred
	} else {
		owner.lastDeferred = fields.prevDeferred
	}
	l.counts.deferredBytes -= b.size()
	l.makeFree(b, id)
}

// freeAndReportWaits frees a deferred block before its uses are complete. It adds the events at
// the end of these uses to those for which the next user of the memory must wait.
func (l *lifetimes) freeAndReportWaits(id uint32) {
	fields := &l.rareFields[id]
	for useID := fields.firstUse; useID != 0; useID = l.uses[useID].next {
		l.reports.waits = append(l.reports.waits,
			StreamPoint{l.uses[useID].sequence, l.streams[l.uses[useID].streamID].name})
	}
	l.removeUses(fields)
	l.reportReturned(id)
	l.freeDeferred(id)
}

// reportReturned adds a block to ReturnedBlocks. It must be called before makeFree, which can drop
// the block's record.
func (l *lifetimes) reportReturned(id uint32) {
	l.reports.hasEntries = true
	region := l.regionOf(&l.blocks[id])
	l.reports.returned = append(l.reports.returned, ReturnedBlock{l.blockView(id), region.owner})
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
