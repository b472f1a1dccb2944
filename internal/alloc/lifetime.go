package alloc

import (
	"cmp"
	"slices"
)

// lifetimes decides when freed memory can be allocated again. Suppose that stream 1 owns a block,
// and the program frees it while stream 2 may still use it. The block is deferred: the caller
// records an event on stream 2. The block becomes free once the event is complete. If stream 1
// needs memory earlier, the device makes it wait for the event.
type lifetimes struct {
	placer
	streamTable
	useTable
	reports
	deferralCount    uint64   // number of blocks deferred so far
	deferringStreams []uint32 // buffer of streamsWithDeferrals
}

// prepareFree clears the reports of the latest call and merges lastFreed.
func (l *lifetimes) prepareFree() {
	if l.reports.hasEntries {
		l.reports.clear()
	}

	if l.lastFreed != 0 {
		l.mergeLastFreedInto(l.indexes[l.lastFreedIndex])
	}
}

// freeOrPark frees, parks or defers a live block and returns its new state.
func (l *lifetimes) freeOrPark(b *block, id uint32) State {
	fields := &l.rareFields[id]
	if fields.pins > 0 || fields.isKept {
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

// deferBlock reports an event to record for each stream that may still use the block.
func (l *lifetimes) deferBlock(id uint32) {
	l.deferralCount++
	l.reports.hasEntries = true
	b := &l.blocks[id]
	for useID := l.rareFields[id].firstUse; useID != 0; useID = l.uses[useID].next {
		u := &l.uses[useID]
		u.deferral = l.deferralCount
		point := StreamPoint{Deferral: l.deferralCount, Stream: l.streams[u.streamID].name}
		l.reports.toRecord = append(l.reports.toRecord, point)
	}

	b.setState(Deferred)
	l.appendDeferred(id)
	l.counts.deferredBytes += b.size()
}

// completeUse ends a stream's use of a block, unless the block was deferred after lastDeferral. It
// frees the block if no use remains.
func (l *lifetimes) completeUse(id, streamID uint32, lastDeferral uint64) {
	fields := &l.rareFields[id]
	isRemoved := l.removeDeferredUse(fields, streamID, lastDeferral)
	hasUses := fields.firstUse != 0
	if isRemoved && !hasUses {
		l.freeDeferred(id)
	}
}

// freeAndReportWaits frees a deferred block before its uses are complete, and reports the uses'
// events.
func (l *lifetimes) freeAndReportWaits(id uint32) {
	fields := &l.rareFields[id]
	for useID := fields.firstUse; useID != 0; useID = l.uses[useID].next {
		u := &l.uses[useID]
		point := StreamPoint{Deferral: u.deferral, Stream: l.streams[u.streamID].name}
		l.reports.waits = append(l.reports.waits, point)
	}

	l.removeUses(fields)
	l.freeDeferred(id)
}

func (l *lifetimes) freeDeferred(id uint32) {
	b := &l.blocks[id]
	returned := ReturnedBlock{Block: l.blockView(id), Owner: l.regionOf(b).owner}
	l.reports.hasEntries = true
	l.reports.returned = append(l.reports.returned, returned)
	l.removeDeferred(id)
	l.counts.deferredBytes -= b.size()
	l.makeFree(b, id) // can drop the record
}

func (l *lifetimes) ownerOf(b *block) *stream {
	return &l.streams[streamIDOf(l.indexIDOf(b))]
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

// streamsWithDeferrals returns the ids of the streams that own deferred blocks, sorted by number.
// The result is valid until the next call.
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

// StreamPoint identifies an event at the end of a deferred block's use on a stream.
type StreamPoint struct {
	// Deferral is the number of the deferred block, from 1 in the order of Frees.
	Deferral uint64
	Stream   Stream
}

// ReturnedBlock describes a deferred or parked block that has become free.
type ReturnedBlock struct {
	Block
	Owner uint32 // Number of the stream that owned the block
}

type reports struct {
	hasEntries bool
	toRecord   []StreamPoint
	waits      []StreamPoint
	returned   []ReturnedBlock
	trimmed    []Segment
}

func (r *reports) clear() {
	r.hasEntries = false
	r.toRecord, r.waits = r.toRecord[:0], r.waits[:0]
	r.returned, r.trimmed = r.returned[:0], r.trimmed[:0]
}

// HasReports reports whether the latest call has added to a list. The lists are valid until the
// next change of the Core.
func (r *reports) HasReports() bool { return r.hasEntries }

// EventsToRecord lists events that the caller must record, because the latest call deferred a
// block.
func (r *reports) EventsToRecord() []StreamPoint { return r.toRecord }

// Waits lists events. The stream of the latest Alloc must wait for them, on the device, before it
// uses a block from this or a later Alloc.
func (r *reports) Waits() []StreamPoint { return r.waits }

// ReturnedBlocks lists deferred and parked blocks in the order in which the latest call freed them.
func (r *reports) ReturnedBlocks() []ReturnedBlock { return r.returned }
