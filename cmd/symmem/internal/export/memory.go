package export

import (
	"fmt"

	"symmem/event"
	"symmem/trace"
)

// poolStates holds the state of a rank's pools at a point in its trace. Traces contain no
// addresses, so poolStates invents an address for each segment.
type poolStates struct {
	pools           map[poolID]*poolState
	ordered         []*poolState // in the order of first use
	sharedPoolCount int64        // number of pools with a group
	nextAddress     int64        // address of the next segment
}

// poolID identifies a pool of the rank.
type poolID struct {
	group string // ID of the group, or "" for a pool of this rank only
	pool  uint64 // number of the pool in the trace
}

// poolState holds the state of a pool: its segments (ranges of memory) and the allocated blocks in
// these.
type poolState struct {
	title string // name of the pool in exported files
	// number is 0 for a pool of this rank only. Pools of groups are numbered from 1 in the order of
	// their first use, which is the same on all ranks.
	number         int64
	segments       map[int32]*segment // mapped segments by their number in the trace
	allocatedBytes int64              // sum of the sizes of blocks
	mappedBytes    int64              // sum of the sizes of segments
}

type segment struct {
	address int64           // invented address
	bytes   int64           // size
	blocks  map[int64]block // by offset
	// isSizeUnknown is set if the trace lacks the event that mapped the segment. bytes is then the
	// end of the last block so far.
	isSizeUnknown bool
}

type block struct {
	size          int64 // actual size in bytes
	requestedSize int64 // size in bytes that the program requested
	stream        uint32
	isFreed       bool   // whether a free has been requested but has not completed
	callSite      string // of the allocation, as file:line, or "" if unknown
}

const (
	firstAddress        = int64(1) << 40  // address of the first segment
	unknownSegmentBytes = int64(64) << 30 // address range for a segment of unknown size
	segmentAlignment    = int64(2) << 20  // divides the addresses of segments
)

func newPoolStates() *poolStates {
	return &poolStates{pools: map[poolID]*poolState{}, nextAddress: firstAddress}
}

func (m *poolStates) findOrAddPool(r *trace.Record) *poolState {
	id := poolID{group: r.Group, pool: r.Pool}
	if p := m.pools[id]; p != nil {
		return p
	}

	p := &poolState{segments: map[int32]*segment{}}
	if r.Group == "" {
		p.title = fmt.Sprintf("pool %d without a domain", r.Pool)
	} else {
		m.sharedPoolCount++
		p.number = m.sharedPoolCount
		p.title = fmt.Sprintf("pool %d of group %s", r.Pool, r.Group)
	}

	m.pools[id] = p
	m.ordered = append(m.ordered, p)
	return p
}

// findOrAddSegment returns the segment of a record. It adds a segment of unknown size if the trace
// lacks the event that mapped it.
func (m *poolStates) findOrAddSegment(p *poolState, r *trace.Record) *segment {
	s := p.segments[r.Segment]
	if s == nil {
		s = &segment{address: m.nextAddress, blocks: map[int64]block{}, isSizeUnknown: true}
		m.nextAddress += unknownSegmentBytes
		p.segments[r.Segment] = s
	}

	return s
}

// apply updates the state with a record. It returns the pool whose allocatedBytes or mappedBytes
// may have changed, or nil if there is none.
func (m *poolStates) apply(r *trace.Record) *poolState {
	if r.Segment < 0 { // not about a segment
		return nil
	}

	p := m.findOrAddPool(r)
	switch r.Kind {
	case event.KindSegment:
		m.addSegment(p, r)
	case event.KindTrim, event.KindRelease:
		p.removeSegment(r.Segment)
	case event.KindAlloc:
		m.addBlock(p, r)
	case event.KindFree, event.KindReturn:
		s := m.findOrAddSegment(p, r)
		p.removeBlock(s, r.Offset)
	case event.KindPark, event.KindDefer: // the block is freed, but still in use
		s := m.findOrAddSegment(p, r)
		if b, ok := s.blocks[r.Offset]; ok {
			b.isFreed = true
			s.blocks[r.Offset] = b
		}

		return nil
	default:
		return nil
	}

	return p
}

// addSegment adds the segment of a record, which replaces an older one with the same number.
func (m *poolStates) addSegment(p *poolState, r *trace.Record) {
	p.removeSegment(r.Segment)
	p.segments[r.Segment] = &segment{
		address: m.nextAddress, bytes: r.Size, blocks: map[int64]block{},
	}
	p.mappedBytes += r.Size
	size := max(r.Size, 0) // a damaged trace can have a negative size
	const gap = segmentAlignment
	m.nextAddress += roundUp(size+gap, segmentAlignment)
}

// addBlock adds the block of a record, which replaces an older one at the same offset. It extends a
// segment of unknown size to the end of the block.
func (m *poolStates) addBlock(p *poolState, r *trace.Record) {
	s := m.findOrAddSegment(p, r)
	end := r.Offset + r.Size
	if s.isSizeUnknown && end > s.bytes {
		p.mappedBytes += end - s.bytes
		s.bytes = end
	}

	p.removeBlock(s, r.Offset)
	s.blocks[r.Offset] = block{
		size: r.Size, requestedSize: r.Requested, stream: r.Stream, callSite: r.Site,
	}
	p.allocatedBytes += r.Size
}

// roundUp rounds n, which must not be negative, up to a multiple of unit.
func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// removeBlock removes the block at an offset, if there is one.
func (p *poolState) removeBlock(s *segment, offset int64) {
	if b, ok := s.blocks[offset]; ok {
		p.allocatedBytes -= b.size
		delete(s.blocks, offset)
	}
}

// removeSegment removes a segment with its blocks, if it exists.
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
