package snapshot

import (
	"cmp"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// forwardPass processes a trace from its beginning and collects the events of each pool. Initial
// segments and blocks existed when the trace began.
type forwardPass struct {
	rank              *history.Rank
	segments          segmentMap            // the mapped segments
	liveInitialBlocks map[uint64]finalBlock // initial blocks that are still live, by address
	hasExpandable     bool                  // see backwardPass
	pools             map[poolID]*pool
	poolsByUse        []poolID             // pools in the order of their first use
	liveBlocks        map[uint64]liveBlock // blocks allocated in the trace, by address
	initialBlocks     []initialBlock       // all initial blocks, sorted by address
}

type initialBlock struct {
	segment *liveSegment
	address uint64
	size    int64
}

// liveBlock is a block that was allocated in the trace.
type liveBlock struct {
	pool   *pool
	number int32 // see history.Event.Block
}

type pool struct {
	sequence   *history.Sequence
	streams    map[int64]int32 // stream numbers by stream ID
	blockCount int32           // number of blocks allocated so far
}

// newForwardPass returns a forwardPass that begins with the state at which b has arrived.
func newForwardPass(rank *history.Rank, b *backwardPass) *forwardPass {
	f := &forwardPass{
		rank: rank, segments: b.segments, liveInitialBlocks: b.blocks, hasExpandable: b.hasExpandable,
		pools: map[poolID]*pool{}, liveBlocks: map[uint64]liveBlock{},
	}
	for _, s := range f.segments.all {
		s.isInitial, s.number = true, -1
	}
	for _, block := range f.liveInitialBlocks {
		if s := f.segments.findContaining(block.address); s != nil {
			f.initialBlocks = append(f.initialBlocks, initialBlock{s, block.address, block.size})
		}
	}
	slices.SortFunc(f.initialBlocks, func(a, b initialBlock) int {
		return cmp.Compare(a.address, b.address)
	})
	return f
}

// addInitialBlocks adds the initial blocks to the sequences of their pools, if these have events.
// It must be called after all events have been added, so that segments without events get the
// highest numbers.
func (f *forwardPass) addInitialBlocks() {
	for _, b := range f.initialBlocks {
		if p := f.pools[b.segment.pool]; p != nil {
			p.sequence.InitialBlocks = append(p.sequence.InitialBlocks, history.InitialBlock{
				Segment: p.segmentNumber(b.segment), Offset: int64(b.address - b.segment.address), Size: b.size,
			})
		}
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
	case actionSegmentMap, actionSegmentUnmap, actionIgnored:
	case actionSegmentFree:
		if s := f.segments.remove(e.address); s != nil {
			p := f.findOrAddPool(s.pool)
			f.appendEvent(p, e, history.UnmapSegment, p.segmentNumber(s), 0, noBlock)
		}
	}
}

// noBlock is the block number of events without a block, and of blocks older than the trace.
const noBlock = -1

// mapSegment adds a segment, which replaces an older one at the same address.
func (f *forwardPass) mapSegment(e *rawEvent) {
	s := &liveSegment{address: e.address, bytes: e.size, pool: e.pool, stream: e.stream, number: -1}
	f.segments.remove(e.address)
	f.segments.add(s)
	p := f.findOrAddPool(s.pool)
	f.appendEvent(p, e, history.MapSegment, p.segmentNumber(s), 0, noBlock)
}

// segmentNumber returns the index of a segment in Sequence.Segments, to which it adds the segment
// at its first use.
func (p *pool) segmentNumber(s *liveSegment) int32 {
	if s.number < 0 {
		s.number = int32(len(p.sequence.Segments))
		p.sequence.Segments = append(p.sequence.Segments, history.SegmentInfo{
			Address: s.address, Bytes: s.bytes, IsInitial: s.isInitial,
		})
	}
	return s.number
}

// locate returns the pool, the segment number and the offset of the event's address. If no segment
// contains the address, the segment number is -1.
func (f *forwardPass) locate(e *rawEvent) (p *pool, segment int32, offset int64) {
	s := f.segments.findContaining(e.address)
	if s == nil {
		return f.findOrAddPool(e.pool), -1, 0
	}
	if s.pool == unknownPool {
		s.pool = e.pool
	}
	p = f.findOrAddPool(s.pool)
	return p, p.segmentNumber(s), int64(e.address - s.address)
}

func (f *forwardPass) addAlloc(e *rawEvent) {
	p, segment, offset := f.locate(e)
	f.liveBlocks[e.address] = liveBlock{p, p.blockCount}
	delete(f.liveInitialBlocks, e.address)
	f.appendEvent(p, e, history.Alloc, segment, offset, p.blockCount)
	p.blockCount++
}

// addFree adds the request or the completion of a free. a is the action.
func (f *forwardPass) addFree(e *rawEvent, a history.Action) {
	p, segment, offset := f.locate(e)
	block := int32(noBlock)
	live, isFromTrace := f.liveBlocks[e.address]
	_, isInitial := f.liveInitialBlocks[e.address]
	switch {
	case isFromTrace && live.pool == p:
		block = live.number
	case isInitial:
		p.sequence.IsPartial = true
	}
	if a == history.FreeCompleted {
		delete(f.liveBlocks, e.address)
	}
	f.appendEvent(p, e, a, segment, offset, block)
}

func (f *forwardPass) appendEvent(
	p *pool, e *rawEvent, a history.Action, segment int32, offset int64, block int32,
) {
	p.sequence.Events = append(p.sequence.Events, history.Event{
		Number: e.number, Size: e.size, Offset: offset, UnixMicro: e.time, Segment: segment,
		Stream: p.streamNumber(e.stream), Block: block, Stack: e.stack, Action: a,
	})
}

// finish completes the sequences of the pools and adds them to the rank, sorted by class and then
// by first use.
func (f *forwardPass) finish() {
	f.addInitialBlocks()
	for _, id := range f.poolsByUse {
		s := f.pools[id].sequence
		for _, segment := range s.Segments {
			s.IsPartial = s.IsPartial || segment.IsInitial
		}
		if f.hasExpandable {
			s.NoPlacesReason = "there are expandable segments"
		}
		if s.Class == history.UnknownPool {
			f.rank.AddNote("the pool of %d events is unknown, because their segments have been freed",
				len(s.Events))
		}
		f.rank.Sequences = append(f.rank.Sequences, s)
	}
	slices.SortStableFunc(f.rank.Sequences, func(a, b *history.Sequence) int {
		return int(a.Class) - int(b.Class)
	})
}
