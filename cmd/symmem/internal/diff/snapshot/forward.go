package snapshot

import (
	"cmp"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
)

// forward processes a trace from its beginning and collects the events of each pool.
type forward struct {
	rank       *history.Rank
	segments   segmentMap
	old        map[uint64]finalBlock // blocks allocated before the trace began, by address
	expandable bool
	pools      map[poolID]*pool
	order      []poolID
	live       map[uint64]place // blocks allocated in the trace, by address
	older      []olderBlock
}

// olderBlock describes a block that was already live when the trace began.
type olderBlock struct {
	segment *liveSegment
	address uint64
	size    int64
}

// place identifies a live block that was allocated in the trace.
type place struct {
	pool  *pool
	block int32
}

// pool collects the events of one pool.
type pool struct {
	sequence *history.Sequence
	streams  map[int64]int32
	blocks   int32
}

func newForward(rank *history.Rank, b *backward) *forward {
	f := &forward{
		rank: rank, segments: b.segments, old: b.blocks, expandable: b.expandable,
		pools: map[poolID]*pool{}, live: map[uint64]place{},
	}
	for _, s := range f.segments.all {
		s.old, s.number = true, -1
	}
	for _, block := range f.old {
		if s := f.segments.containing(block.address); s != nil {
			f.older = append(f.older, olderBlock{s, block.address, block.size})
		}
	}
	slices.SortFunc(f.older, func(a, b olderBlock) int { return cmp.Compare(a.address, b.address) })
	return f
}

// addOlder adds the blocks that were already live when the trace began to the sequences of their
// pools. It numbers their segments after the segments that the trace uses.
func (f *forward) addOlder() {
	for _, b := range f.older {
		if p := f.pools[b.segment.pool]; p != nil {
			p.sequence.InitialBlocks = append(p.sequence.InitialBlocks, history.InitialBlock{
				Segment: p.number(b.segment), Offset: int64(b.address - b.segment.address), Size: b.size,
			})
		}
	}
}

func (f *forward) run(trace []raw) {
	f.noteOld()
	for i := range trace {
		f.event(&trace[i])
	}
	f.finish()
}

// noteOld adds notes about memory that was mapped before the trace began, and about expandable
// segments.
func (f *forward) noteOld() {
	if n := len(f.segments.all); n > 0 {
		f.rank.Note("%d segments and %d blocks are older than the trace: the order in which those "+
			"segments were made is unknown, so they are numbered by their first use",
			n, len(f.old))
	}
	if f.expandable {
		f.rank.Note("it has expandable segments: places are not compared")
	}
}

func (f *forward) pool(id poolID) *pool {
	p := f.pools[id]
	if p == nil {
		class, name := classOf(id)
		p = &pool{
			sequence: &history.Sequence{Class: class, ID: name},
			streams:  map[int64]int32{},
		}
		f.pools[id] = p
		f.order = append(f.order, id)
	}
	return p
}

// stream returns the number of a stream in a pool. The default stream is 0, and the others are
// numbered from 1 in the order of their first use.
func (p *pool) stream(raw int64) int32 {
	if raw == 0 {
		return 0
	}
	n, ok := p.streams[raw]
	if !ok {
		n = int32(len(p.streams)) + 1
		p.streams[raw] = n
	}
	return n
}

func (f *forward) event(e *raw) {
	switch e.action {
	case actionAlloc:
		f.alloc(e)
	case actionFreeRequested:
		f.free(e, history.Free)
	case actionFreeCompleted:
		f.free(e, history.FreeDone)
	case actionSegmentAlloc:
		f.mapSegment(e)
	case actionSegmentMap, actionSegmentUnmap, actionOther:
	case actionSegmentFree:
		if s := f.segments.remove(e.address); s != nil {
			p := f.pool(s.pool)
			f.write(p, e, history.UnmapSegment, p.number(s), 0, -1)
		}
	}
}

func (f *forward) mapSegment(e *raw) {
	s := &liveSegment{address: e.address, bytes: e.size, pool: e.pool, stream: e.stream, number: -1}
	f.segments.remove(e.address)
	f.segments.add(s)
	p := f.pool(s.pool)
	f.write(p, e, history.MapSegment, p.number(s), 0, -1)
}

// number returns the number of a segment. It assigns the number if the segment has none yet.
func (p *pool) number(s *liveSegment) int32 {
	if s.number < 0 {
		s.number = int32(len(p.sequence.Segments))
		p.sequence.Segments = append(p.sequence.Segments, history.SegmentInfo{
			Address: s.address, Bytes: s.bytes, Initial: s.old,
		})
	}
	return s.number
}

// locate returns the pool and segment that contain the event's address, and the offset of the
// address in the segment.
func (f *forward) locate(e *raw) (*pool, int32, int64) {
	s := f.segments.containing(e.address)
	if s == nil {
		return f.pool(e.pool), -1, 0
	}
	id := s.pool
	if id == unknownPool && e.pool != unknownPool {
		id, s.pool = e.pool, e.pool
	}
	p := f.pool(id)
	return p, p.number(s), int64(e.address - s.address)
}

func (f *forward) alloc(e *raw) {
	p, segment, offset := f.locate(e)
	f.live[e.address] = place{p, p.blocks}
	delete(f.old, e.address)
	f.write(p, e, history.Alloc, segment, offset, p.blocks)
	p.blocks++
}

func (f *forward) free(e *raw, a history.Action) {
	p, segment, offset := f.locate(e)
	block := int32(-1)
	if at, ok := f.live[e.address]; ok && at.pool == p {
		block = at.block
	} else if _, ok := f.old[e.address]; ok {
		p.sequence.Partial = true // the pool is older than the trace
	}
	if a == history.FreeDone {
		delete(f.live, e.address)
	}
	f.write(p, e, a, segment, offset, block)
}

func (f *forward) write(
	p *pool, e *raw, a history.Action, segment int32, offset int64, block int32,
) {
	p.sequence.Events = append(p.sequence.Events, history.Event{
		Number: e.number, Size: e.size, Offset: offset, Time: e.time, Segment: segment,
		Stream: p.stream(e.stream), Block: block, Stack: e.stack, Action: a,
	})
}

// finish adds the sequences of the pools to the rank, sorted by class and then by their first
// event.
func (f *forward) finish() {
	f.addOlder()
	for _, id := range f.order {
		s := f.pools[id].sequence
		for _, segment := range s.Segments {
			s.Partial = s.Partial || segment.Initial
		}
		if f.expandable {
			s.NoPlacesReason = "the file has expandable segments"
		}
		if s.Class == history.UnknownPool {
			f.rank.Note("of %d events the pool is unknown: they are in segments that were freed",
				len(s.Events))
		}
		f.rank.Sequences = append(f.rank.Sequences, s)
	}
	slices.SortStableFunc(f.rank.Sequences, func(a, b *history.Sequence) int {
		return int(a.Class) - int(b.Class)
	})
}
