package export

import (
	"fmt"

	"symmem/event"
	"symmem/trace"
)

// poolStates replays the allocations and frees in a rank's trace. A pool maps segments of memory
// and allocates blocks in them. Traces contain no addresses, so poolStates invents them.
type poolStates struct {
	pools           map[poolID]*poolState
	ordered         []*poolState // in the order of first use
	sharedPoolCount int64
	nextAddress     int64 // address of the next segment
}

type poolID struct {
	group string // ID of the group that shares the pool, or "" for a local pool
	pool  uint64
}

type poolState struct {
	title          string             // name in exported files
	number         int64              // 0 for a local pool; shared pools count from 1
	segments       map[int32]*segment // by number
	mappedBytes    int64              // in all segments
	allocatedBytes int64              // in all blocks
}

type segment struct {
	address       int64           // invented
	isSizeUnknown bool            // the trace has lost the segment's record
	bytes         int64           // if isSizeUnknown, highest end of a block so far
	blocks        map[int64]block // by offset
}

type block struct {
	size          int64  // in bytes
	requestedSize int64  // in bytes, before rounding up to size
	isFreed       bool   // the program has freed the block, but the GPU may still use it
	callSite      string // file:line of the allocation, or "" if unknown
}

// Invented addresses.
const (
	firstAddress        = int64(1) << 40
	segmentAlignment    = int64(2) << 20
	unknownSegmentBytes = int64(64) << 30 // reserved for a segment of unknown size
)

func newPoolStates() *poolStates {
	return &poolStates{pools: map[poolID]*poolState{}, nextAddress: firstAddress}
}

// apply updates the state with a record. It returns the pool whose mappedBytes or allocatedBytes
// may have changed, or nil.
func (states *poolStates) apply(r *trace.Record) *poolState {
	if r.Segment < 0 { // the event is not about memory
		return nil
	}

	p := states.findOrAddPool(r)
	switch r.Kind {
	case event.KindSegment:
		states.addSegment(p, r)
		return p
	case event.KindTrim, event.KindRelease:
		p.removeSegment(r.Segment)
		return p
	case event.KindAlloc:
		states.addBlock(p, r)
		return p
	case event.KindFree, event.KindReturn:
		s := states.findOrAddSegment(p, r)
		p.removeBlock(s, r.Offset)
		return p
	case event.KindPark, event.KindDefer: // a later KindReturn removes the block
		s := states.findOrAddSegment(p, r)
		s.markFreed(r.Offset)
		return nil
	default:
		return nil
	}
}

func (states *poolStates) findOrAddPool(r *trace.Record) *poolState {
	id := poolID{group: r.Group, pool: r.Pool}
	if p := states.pools[id]; p != nil {
		return p
	}

	p := &poolState{segments: map[int32]*segment{}}
	if r.Group == "" {
		p.title = fmt.Sprintf("local pool %d", r.Pool)
	} else {
		states.sharedPoolCount++
		p.number = states.sharedPoolCount
		p.title = fmt.Sprintf("pool %d of group %s", r.Pool, r.Group)
	}

	states.pools[id] = p
	states.ordered = append(states.ordered, p)
	return p
}

// addSegment adds a segment and replaces an older one with the same number.
func (states *poolStates) addSegment(p *poolState, r *trace.Record) {
	p.removeSegment(r.Segment)
	p.segments[r.Segment] = &segment{
		address: states.nextAddress, bytes: r.Size, blocks: map[int64]block{},
	}
	p.mappedBytes += r.Size
	size := max(r.Size, 0) // a damaged trace can have a negative size
	const gap = segmentAlignment
	states.nextAddress += roundUp(size+gap, segmentAlignment)
}

// findOrAddSegment adds a segment of unknown size if the trace has lost the segment's record.
func (states *poolStates) findOrAddSegment(p *poolState, r *trace.Record) *segment {
	s := p.segments[r.Segment]
	if s == nil {
		s = &segment{address: states.nextAddress, blocks: map[int64]block{}, isSizeUnknown: true}
		states.nextAddress += unknownSegmentBytes
		p.segments[r.Segment] = s
	}

	return s
}

// removeSegment removes a segment and its blocks, if the segment exists.
func (p *poolState) removeSegment(number int32) {
	s := p.segments[number]
	if s == nil {
		return
	}

	for offset := range s.blocks {
		p.removeBlock(s, offset)
	}

	p.mappedBytes -= s.bytes
	delete(p.segments, number)
}

// addBlock adds a block and replaces an older one at the same offset.
func (states *poolStates) addBlock(p *poolState, r *trace.Record) {
	s := states.findOrAddSegment(p, r)
	end := r.Offset + r.Size
	if s.isSizeUnknown && end > s.bytes {
		p.mappedBytes += end - s.bytes
		s.bytes = end
	}

	p.removeBlock(s, r.Offset)
	s.blocks[r.Offset] = block{
		size: r.Size, requestedSize: r.Requested, callSite: r.Site,
	}
	p.allocatedBytes += r.Size
}

func (s *segment) markFreed(offset int64) {
	if b, isKnown := s.blocks[offset]; isKnown {
		b.isFreed = true
		s.blocks[offset] = b
	}
}

// removeBlock does nothing if the trace has lost the allocation of the block.
func (p *poolState) removeBlock(s *segment, offset int64) {
	if b, isKnown := s.blocks[offset]; isKnown {
		p.allocatedBytes -= b.size
		delete(s.blocks, offset)
	}
}

// roundUp rounds n up to a multiple of unit. n must not be negative.
func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
