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
	deferringStreams []uint32 // memory for the result of streamsWithDeferrals, reused by each call
}

// indexFor selects the stream (see selectStream). It returns the id of the index of free blocks
// that serves requests of roundedBytes on the stream.
func (l *lifetimes) indexFor(stream Stream, roundedBytes int64) uint32 {
	if stream != l.selectedStream {
		l.selectStream(stream)
	}

	return l.selectedIndex + l.config.smallIndexBit(roundedBytes)
}

// selectStream makes a stream the selected one, on which the latest request was made. It assigns a
// number to the stream if the stream has none.
func (l *lifetimes) selectStream(stream Stream) {
	streamID := l.ensureStream(stream)
	l.assignNumber(streamID)
	l.selectedStream = stream
	l.selectedIndex = streamID * 2 // each stream has two indexes: for large and for small requests
}

// ensureStream adds a stream if it is unknown, and returns its id.
func (l *lifetimes) ensureStream(stream Stream) uint32 {
	streamID, isKnown := l.streamIDs[stream]
	if !isKnown {
		streamID = l.addStream(stream)
		l.indexes = append(l.indexes, nil, nil) // created when the stream gets memory
	}

	return streamID
}

// prepareFree completes the previous call. It clears that call's reports. If that call was a Free,
// it merges the freed block with its neighbors.
func (l *lifetimes) prepareFree() {
	if l.reports.hasEntries {
		l.reports.clear()
	}

	if l.lastFreed != 0 {
		l.mergeLastFreedInto(l.indexes[l.lastFreedIndex])
	}
}

// freeOrPark parks a block that the caller frees if the block is pinned or kept: its memory stays
// allocated. Otherwise, it calls freeOrDefer. It returns the new state.
func (l *lifetimes) freeOrPark(b *block, id uint32) State {
	if l.rareFields[id].pins > 0 || l.rareFields[id].isKept {
		b.setState(Parked)
		l.counts.parkedBytes += b.size()
		return Parked
	}

	return l.freeOrDefer(id)
}

// freeOrDefer defers the free of a block if other streams can still use the block. Otherwise, it
// makes the block free. It returns the new state.
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

// deferFree defers the free of a block. For each of the block's uses, it reports an event that the
// caller must record. The block becomes the last in its owner's list of deferred blocks.
func (l *lifetimes) deferFree(id uint32) {
	l.deferralCount++
	l.reports.hasEntries = true
	b, fields := &l.blocks[id], &l.rareFields[id]
	for useID := fields.firstUse; useID != 0; useID = l.uses[useID].next {
		u := &l.uses[useID]
		u.sequence = l.deferralCount
		point := StreamPoint{Deferral: l.deferralCount, Stream: l.streams[u.streamID].name}
		l.reports.toRecord = append(l.reports.toRecord, point)
	}

	owner := &l.streams[l.indexIDOf(b)/2]
	b.setState(Deferred)
	fields.prevDeferred = owner.lastDeferred
	fields.nextDeferred = 0
	if owner.lastDeferred != 0 {
		l.rareFields[owner.lastDeferred].nextDeferred = id
	} else {
		owner.firstDeferred = id
	}

	owner.lastDeferred = id
	l.counts.deferredBytes += b.size()
}

// endDeferral ends the use of a deferred block on a stream, and frees the block if this was its
// last use. It does nothing if the block was deferred after the deferral with the number
// lastDeferral.
func (l *lifetimes) endDeferral(id, streamID uint32, lastDeferral uint64) {
	fields := &l.rareFields[id]
	isRemoved := l.removeUse(fields, streamID, lastDeferral)
	isUnused := fields.firstUse == 0
	if isRemoved && isUnused {
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

// freeAndReportWaits frees a deferred block before its uses are complete. It reports the events at
// the end of these uses as Waits: the next user of the memory must wait for them.
func (l *lifetimes) freeAndReportWaits(id uint32) {
	fields := &l.rareFields[id]
	for useID := fields.firstUse; useID != 0; useID = l.uses[useID].next {
		u := &l.uses[useID]
		point := StreamPoint{Deferral: u.sequence, Stream: l.streams[u.streamID].name}
		l.reports.waits = append(l.reports.waits, point)
	}

	l.removeUses(fields)
	l.reportReturned(id)
	l.freeDeferred(id)
}

// reportReturned adds a block to ReturnedBlocks. Call it before makeFree, which can drop the
// block's record.
func (l *lifetimes) reportReturned(id uint32) {
	l.reports.hasEntries = true
	region := l.regionOf(&l.blocks[id])
	returned := ReturnedBlock{Block: l.blockView(id), Owner: region.owner}
	l.reports.returned = append(l.reports.returned, returned)
}

// stateView returns the View of a block.
func (l *lifetimes) stateView(id uint32) View {
	b := &l.blocks[id]
	view := View{
		Block:  l.blockView(id),
		State:  b.state(),
		Stream: l.nameOfIndex(l.indexIDOf(b)),
		Pins:   l.rareFields[id].pins,
	}
	if b.state() == Free {
		view.Handle = 0 // the record has a handle only while the block is allocated
	}

	return view
}

// segmentView returns the description of the segment with the given ordinal.
func (l *lifetimes) segmentView(ordinal int32) Segment {
	s := &l.segments[ordinal]
	return Segment{
		Ordinal: ordinal,
		Bytes:   s.bytes,
		Address: s.address,
		Stream:  l.nameOfIndex(s.indexID),
	}
}
