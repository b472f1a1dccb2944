package snapshot

import (
	"cmp"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// forwardPass processes a trace from its beginning and collects the events of each pool. Initial
// segments and blocks existed when the trace began. A backwardPass has found them.
type forwardPass struct {
	rank              *history.Rank
	segments          segmentMap            // the mapped segments
	liveInitialBlocks map[uint64]finalBlock // initial blocks not yet replaced by others, by address
	hasExpandable     bool                  // whether an expandable segment occurs
	pools             map[poolID]*pool
	poolsByUse        []poolID             // pools in the order of their first use
	liveBlocks        map[uint64]liveBlock // blocks allocated in the trace, by address
	initialBlocks     []initialBlock       // all initial blocks, sorted by address
}

// initialBlock is a block that was allocated before the trace began.
type initialBlock struct {
	segment *liveSegment
	address uint64
	size    int64
}

// liveBlock is a block that was allocated in the trace.
type liveBlock struct {
	pool   *pool
	number int32 // counted from 0 in the pool, as in history.Event.Block
}

// pool holds the events of a pool so far.
type pool struct {
	sequence   *history.Sequence
	streams    map[int64]int32 // stream numbers by stream ID
	blockCount int32           // number of blocks allocated so far
}

// newForwardPass returns a forwardPass that begins with the state at which b has arrived, which is
// the state at the beginning of the trace.
func newForwardPass(rank *history.Rank, b *backwardPass) *forwardPass {
	f := &forwardPass{
		rank: rank, segments: b.segments, liveInitialBlocks: b.blocks, hasExpandable: b.hasExpandable,
		pools: map[poolID]*pool{}, liveBlocks: map[uint64]liveBlock{},
	}
	for _, s := range f.segments.all {
		s.isInitial = true
		s.number = noSegment
	}

	for _, block := range f.liveInitialBlocks {
		if s := f.segments.findContaining(block.address); s != nil {
			f.initialBlocks = append(f.initialBlocks, initialBlock{
				segment: s, address: block.address, size: block.size,
			})
		}
	}

	slices.SortFunc(f.initialBlocks, func(x, y initialBlock) int {
		return cmp.Compare(x.address, y.address)
	})
	return f
}

// addInitialBlocks adds the initial blocks to the sequences of their pools. It leaves out pools
// without events. Call it after all events have been added, so that segments without events get the
// highest numbers.
func (f *forwardPass) addInitialBlocks() {
	for _, block := range f.initialBlocks {
		p := f.pools[block.segment.pool]
		if p == nil { // the pool has no events
			continue
		}

		p.sequence.InitialBlocks = append(p.sequence.InitialBlocks, history.InitialBlock{
			Segment: p.segmentNumber(block.segment),
			Offset:  int64(block.address - block.segment.address),
			Size:    block.size,
		})
	}
}

// run processes the trace, and adds the sequences of its pools to the rank.
func (f *forwardPass) run(trace []rawEvent) {
	f.addNotes()
	for i := range trace {
		f.addEvent(&trace[i])
	}

	f.finish()
}

// addNotes adds notes about the state at the beginning of the trace. Call it before the events
// change that state.
func (f *forwardPass) addNotes() {
	if n := len(f.segments.all); n > 0 {
		f.rank.AddNote("%d segments and %d blocks are older than the trace: these segments are "+
			"numbered by their first use, because it is unknown in which order they were mapped",
			n, len(f.liveInitialBlocks))
	}

	if f.hasExpandable {
		f.rank.AddNote("there are expandable segments, so places are not compared")
	}
}

// findOrAddPool returns the pool with an ID, which it adds at the first use.
func (f *forwardPass) findOrAddPool(id poolID) *pool {
	p := f.pools[id]
	if p == nil {
		class, name := classOf(id)
		p = &pool{
			sequence: &history.Sequence{Class: class, ID: name},
			streams:  map[int64]int32{},
		}
		f.pools[id] = p
		f.poolsByUse = append(f.poolsByUse, id)
	}

	return p
}

// streamNumber returns the number of the stream with an ID. The default stream has the number 0.
// Other streams are numbered from 1 in the order of their first use in the pool.
func (p *pool) streamNumber(id int64) int32 {
	if id == 0 {
		return 0
	}

	n, ok := p.streams[id]
	if !ok {
		n = int32(len(p.streams)) + 1
		p.streams[id] = n
	}

	return n
}

// addEvent adds an event to the sequence of its pool, and updates the state.
func (f *forwardPass) addEvent(e *rawEvent) {
	switch e.action {
	case actionAlloc:
		f.addAlloc(e)
	case actionFreeRequested:
		f.addFree(e, history.Free)
	case actionFreeCompleted:
		f.addFree(e, history.FreeCompleted)
	case actionSegmentAlloc:
		f.mapSegment(e)
	case actionSegmentFree:
		f.unmapSegment(e)
	case actionSegmentMap, actionSegmentUnmap, actionIgnored: // expandable segments are not modeled
	}
}

const (
	noBlock   = -1 // block number of events without a block, and of blocks older than the trace
	noSegment = -1 // segment number outside segments, and of a segment before its first use
)

// place is the place of an event's address: its segment, and the offset in the segment.
type place struct {
	segment int32 // index in Sequence.Segments, or -1 if no segment contains the address
	offset  int64 // in bytes
}

// mapSegment adds a segment, which replaces an older one at the same address.
func (f *forwardPass) mapSegment(e *rawEvent) {
	f.segments.remove(e.address)
	s := &liveSegment{
		address: e.address, bytes: e.size, pool: e.pool, stream: e.stream, number: noSegment,
	}
	f.segments.add(s)
	p := f.findOrAddPool(s.pool)
	p.appendEvent(e, history.MapSegment, place{segment: p.segmentNumber(s)}, noBlock)
}

// unmapSegment removes the segment at the event's address, if there is one.
func (f *forwardPass) unmapSegment(e *rawEvent) {
	s := f.segments.remove(e.address)
	if s == nil { // the address is unknown
		return
	}

	p := f.findOrAddPool(s.pool)
	p.appendEvent(e, history.UnmapSegment, place{segment: p.segmentNumber(s)}, noBlock)
}

// segmentNumber returns the index of a segment in Sequence.Segments. At the first use of the
// segment, it adds the segment there.
func (p *pool) segmentNumber(s *liveSegment) int32 {
	if s.number < 0 {
		s.number = int32(len(p.sequence.Segments))
		p.sequence.Segments = append(p.sequence.Segments, history.SegmentInfo{
			Address: s.address, Bytes: s.bytes, IsInitial: s.isInitial,
		})
	}

	return s.number
}

// locate returns the pool and the place of the event's address. If the pool of the segment there is
// unknown, locate sets it to the pool of the event.
func (f *forwardPass) locate(e *rawEvent) (*pool, place) {
	s := f.segments.findContaining(e.address)
	if s == nil {
		return f.findOrAddPool(e.pool), place{segment: noSegment}
	}

	if s.pool == unknownPool {
		s.pool = e.pool
	}

	p := f.findOrAddPool(s.pool)
	offset := int64(e.address - s.address)
	return p, place{segment: p.segmentNumber(s), offset: offset}
}

// addAlloc adds an allocation, and numbers its block.
func (f *forwardPass) addAlloc(e *rawEvent) {
	p, at := f.locate(e)
	number := p.blockCount
	p.blockCount++
	f.liveBlocks[e.address] = liveBlock{pool: p, number: number}
	delete(f.liveInitialBlocks, e.address) // the new block has replaced it
	p.appendEvent(e, history.Alloc, at, number)
}

// addFree adds a free. The action is either history.Free, the request, or history.FreeCompleted.
func (f *forwardPass) addFree(e *rawEvent, action history.Action) {
	p, at := f.locate(e)
	block := int32(noBlock)
	live, isFromTrace := f.liveBlocks[e.address]
	_, isInitial := f.liveInitialBlocks[e.address]
	if isFromTrace && live.pool == p {
		block = live.number
	} else if isInitial {
		p.sequence.IsPartial = true // the allocation is missing
	}

	if action == history.FreeCompleted {
		delete(f.liveBlocks, e.address)
	}

	p.appendEvent(e, action, at, block)
}

// appendEvent appends an event to the sequence of the pool. block is the number of its block.
func (p *pool) appendEvent(e *rawEvent, action history.Action, at place, block int32) {
	p.sequence.Events = append(p.sequence.Events, history.Event{
		Number: e.number, Size: e.size, Offset: at.offset, UnixMicro: e.time, Segment: at.segment,
		Stream: p.streamNumber(e.stream), Block: block, Stack: e.stack, Action: action,
	})
}

// finish completes the sequences of the pools and adds them to the rank, sorted by class and then
// by first use.
func (f *forwardPass) finish() {
	f.addInitialBlocks()
	for _, id := range f.poolsByUse {
		sequence := f.pools[id].sequence
		for _, segment := range sequence.Segments {
			if segment.IsInitial {
				sequence.IsPartial = true
			}
		}

		if f.hasExpandable {
			sequence.NoPlacesReason = "there are expandable segments"
		}

		if sequence.Class == history.UnknownPool {
			f.rank.AddNote("the pool of %d events is unknown, because their segments have been freed",
				len(sequence.Events))
		}

		f.rank.Sequences = append(f.rank.Sequences, sequence)
	}

	slices.SortStableFunc(f.rank.Sequences, func(x, y *history.Sequence) int {
		return cmp.Compare(x.Class, y.Class)
	})
}
