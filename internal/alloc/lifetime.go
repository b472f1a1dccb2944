package alloc

import (
	"cmp"
	"slices"
)

// Suppose that stream 1 owns a block, and that stream 2 also uses it. The program frees the block
// while work of stream 2 may still be running. The block is then deferred:
//
//   - deferBlock adds it to a list of stream 1, its owner. It reports an event, which the caller
//     must record on stream 2. The event occurs when the earlier work of stream 2 is complete.
//   - If the caller later waits for stream 2, endDeferral makes the block free.
//   - If stream 1 needs memory sooner, freeAndReportWaits makes the block free at once. It reports
//     that stream 1 must wait for the event, on the device.

// lifetimes decides when freed memory can be allocated again.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	deferralCount    uint64   // number of blocks deferred so far
	deferringStreams []uint32 // memory for the result of streamsWithDeferrals, reused by each call
}

// prepareFree completes the previous call. It clears the reports of that call. If that call was a
// Free, it merges the freed block with its neighbors.
func (l *lifetimes) prepareFree() {
	if l.reports.hasEntries {
		l.reports.clear()
	}

	if l.lastFreed != 0 {
		l.mergeLastFreedInto(l.indexes[l.lastFreedIndex])
	}
}

// freeOrPark handles the Free of block b, which has the given id, and returns the new state. A
// block that is pinned or kept becomes parked: its memory stays allocated.
func (l *lifetimes) freeOrPark(b *block, id uint32) State {
	if l.rareFields[id].pins > 0 || l.rareFields[id].isKept {
		b.setState(Parked)
		l.counts.parkedBytes += b.size()
		return Parked
	}

	return l.freeOrDefer(id)
}

// freeOrDefer defers a block that other streams can still use, and makes other blocks free. It
// returns the new state.
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

// deferBlock defers a block. For each of the block's uses, it reports an event that the caller must
// record. The uses get the number of the deferral.
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

// endDeferral ends the use of a deferred block by a stream, and frees the block if it has no other
// use. It does nothing if the block was deferred after the block with the number lastDeferral,
// because the stream's work is known to be complete only up to then.
func (l *lifetimes) endDeferral(id, streamID uint32, lastDeferral uint64) {
	fields := &l.rareFields[id]
	isRemoved := l.removeUse(fields, streamID, lastDeferral)
	isUnused := fields.firstUse == 0
	if isRemoved && isUnused {
		l.reportReturned(id)
		l.freeDeferred(id)
	}
}

// freeAndReportWaits makes a deferred block free before its uses are complete. It reports the
// events for which the next user of the memory must wait.
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

// freeDeferred makes a deferred block free.
func (l *lifetimes) freeDeferred(id uint32) {
	b := &l.blocks[id]
	l.removeDeferred(id)
	l.counts.deferredBytes -= b.size()
	l.makeFree(b, id)
}

// ownerOf returns the stream that owns a block.
func (l *lifetimes) ownerOf(b *block) *stream {
	streamID := l.indexIDOf(b) / 2 // see selectStream
	return &l.streams[streamID]
}

// appendDeferred adds a block at the end of its owner's list of deferred blocks.
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

// removeDeferred removes a block from its owner's list of deferred blocks.
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

// indexFor selects the stream of a request. It returns the id of the index of free blocks that
// serves requests of this size. roundedBytes is the size, rounded up to units of 512 bytes.
func (l *lifetimes) indexFor(stream Stream, roundedBytes int64) uint32 {
	if stream != l.selectedStream {
		l.selectStream(stream)
	}

	return l.selectedIndex + l.config.smallIndexBit(roundedBytes)
}

// selectStream makes a stream the selected one: the stream of the latest request. It assigns a
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

// stateView returns the View of a block.
func (l *lifetimes) stateView(id uint32) View {
	b := &l.blocks[id]
	view := View{
		Block:  l.blockView(id),
		State:  b.state(),
		Stream: l.ownerOf(b).name,
		Pins:   l.rareFields[id].pins,
	}
	if b.state() == Free {
		view.Handle = 0 // only allocated blocks have handles
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
