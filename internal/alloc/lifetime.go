package alloc

import (
	"cmp"
	"slices"
)

// lifetimes decides when freed memory can be allocated again. Suppose that stream 1 owns a block
// and the program frees it while stream 2 may still use it. deferBlock then asks the caller to
// record an event on stream 2. The block becomes free once stream 2 is complete, or earlier if
// stream 1 needs memory: stream 1 then waits for the event on the device.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	deferralCount    uint64   // number of blocks deferred so far
	deferringStreams []uint32 // result of streamsWithDeferrals, reused by each call
}

// prepareFree clears the reports of the previous call and merges the last freed block, if any, with
// its neighbors.
func (l *lifetimes) prepareFree() {
	if l.reports.hasEntries {
		l.reports.clear()
	}

	if l.lastFreed != 0 {
		l.mergeLastFreedInto(l.indexes[l.lastFreedIndex])
	}
}

// freeOrPark parks a live block that is pinned or kept, and frees or defers any other live block.
// It returns the new state.
func (l *lifetimes) freeOrPark(b *block, id uint32) State {
	fields := &l.rareFields[id]
	staysAllocated := fields.pins > 0 || fields.isKept
	if staysAllocated {
		b.setState(Parked)
		l.counts.parkedBytes += b.size()
		return Parked
	}

	return l.freeOrDefer(id)
}

func (l *lifetimes) freeOrDefer(id uint32) State {
	l.removeCompleteUses(&l.rareFields[id], l.streams)
	hasUses := l.rareFields[id].firstUse != 0
	if hasUses {
		l.deferBlock(id)
		return Deferred
	}

	l.makeFree(&l.blocks[id], id)
	return Free
}

// deferBlock reports one event to record for each stream that may still use the block.
func (l *lifetimes) deferBlock(id uint32) {
	l.deferralCount++
	l.reports.hasEntries = true
	b := &l.blocks[id]
	for useID := l.rareFields[id].firstUse; useID != 0; useID = l.uses[useID].next {
		u := &l.uses[useID]
		u.sequence = l.deferralCount
		point := StreamPoint{Deferral: l.deferralCount, Stream: l.streams[u.streamID].name}
		l.reports.toRecord = append(l.reports.toRecord, point)
	}

	b.setState(Deferred)
	l.appendDeferred(id)
	l.counts.deferredBytes += b.size()
}

// endDeferral ends a stream's use of a deferred block, and frees the block if no use remains. It
// ignores blocks deferred after lastDeferral, which later work of the stream may still use.
func (l *lifetimes) endDeferral(id, streamID uint32, lastDeferral uint64) {
	fields := &l.rareFields[id]
	isRemoved := l.removeUse(fields, streamID, lastDeferral)
	isUnused := fields.firstUse == 0
	if isRemoved && isUnused {
		l.reportReturned(id)
		l.freeDeferred(id)
	}
}

// freeAndReportWaits frees a deferred block before its uses are complete. It reports the events
// that the next user of the memory must wait for.
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

// reportReturned must precede makeFree, which can drop the block's record.
func (l *lifetimes) reportReturned(id uint32) {
	l.reports.hasEntries = true
	region := l.regionOf(&l.blocks[id])
	returned := ReturnedBlock{Block: l.blockView(id), Owner: region.owner}
	l.reports.returned = append(l.reports.returned, returned)
}

func (l *lifetimes) freeDeferred(id uint32) {
	b := &l.blocks[id]
	l.removeDeferred(id)
	l.counts.deferredBytes -= b.size()
	l.makeFree(b, id)
}

func (l *lifetimes) ownerOf(b *block) *stream {
	streamID := l.indexIDOf(b) / 2 // each stream has two indexes
	return &l.streams[streamID]
}

func (l *lifetimes) appendDeferred(id uint32) {
	owner, fields := l.ownerOf(&l.blocks[id]), &l.rareFields[id]
	fields.prevDeferred = owner.lastDeferred
	fields.nextDeferred = 0
	if owner.lastDeferred != 0 {
		l.rareFields[owner.lastDeferred].nextDeferred = id
	} else {
		owner.firstDeferred = id
	}

	owner.lastDeferred = id
}

func (l *lifetimes) removeDeferred(id uint32) {
	owner, fields := l.ownerOf(&l.blocks[id]), &l.rareFields[id]
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
}

// streamsWithDeferrals returns the ids of the streams that own deferred blocks, sorted by stream
// number. The result is valid until the next call.
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

// indexFor selects the stream of a request, and returns the id of the free-block index for the
// request's size. roundedBytes is a multiple of Unit.
func (l *lifetimes) indexFor(stream Stream, roundedBytes int64) uint32 {
	if stream != l.selectedStream {
		l.selectStream(stream)
	}

	return l.selectedIndex + l.config.smallIndexBit(roundedBytes)
}

// selectStream caches the first index of a stream for the next request, and numbers a new stream.
func (l *lifetimes) selectStream(stream Stream) {
	streamID := l.ensureStream(stream)
	l.assignNumber(streamID)
	l.selectedStream = stream
	l.selectedIndex = streamID * 2 // for large requests; the next index is for small ones
}

func (l *lifetimes) ensureStream(stream Stream) uint32 {
	streamID, isKnown := l.streamIDs[stream]
	if !isKnown {
		streamID = l.addStream(stream)
		l.indexes = append(l.indexes, nil, nil) // for large and small requests; nil until needed
	}

	return streamID
}

func (l *lifetimes) stateView(id uint32) View {
	b := &l.blocks[id]
	view := View{
		Block:  l.blockView(id),
		State:  b.state(),
		Stream: l.ownerOf(b).name,
		Pins:   l.rareFields[id].pins,
	}
	if b.state() == Free {
		view.Handle = 0
	}

	return view
}

func (l *lifetimes) segmentView(ordinal int32) Segment {
	s := &l.segments[ordinal]
	return Segment{
		Ordinal: ordinal,
		Bytes:   s.bytes,
		Address: s.address,
		Stream:  l.nameOfIndex(s.indexID),
	}
}
