package export

import (
	"fmt"

	"symmem/event"
	"symmem/trace"
)

// poolStates holds the state of a rank's pools at a point in its trace. It assigns an artificial
// address to each segment, because traces contain no addresses. The domain of a pool is the group
// whose ranks must make the same requests to the pool.
type poolStates struct {
	pools           map[poolID]*poolState
	ordered         []*poolState // in the order of first use
	domainPoolCount int64
	nextAddress     int64 // address of the next segment
}

type poolID struct {
	group string
	pool  uint64
}

type poolState struct {
	title string
	// number is 0 for a pool without a domain. Other pools have the numbers 1, 2 and so on, in the
	// order of first use, which is the same on all ranks.
	number   int64
	segments map[int32]*segment
	// allocatedBytes and mappedBytes are the total sizes of blocks and of segments.
	allocatedBytes, mappedBytes int64
}

type segment struct {
	address, bytes int64
	blocks         map[int64]block // by offset
	// isSizeUnknown is set if the trace lacks the event that mapped the segment. In that case,
	// bytes is the end of the last block so far.
	isSizeUnknown bool
}

// block describes a block that is allocated, or freed but not yet reusable.
type block struct {
	size, requestedSize int64
	stream              uint32
	isFreed             bool
	callSite            string
}

const (
	firstAddress = int64(1) << 40
	// unknownSegmentBytes is the address range that is left for a segment of unknown size.
	unknownSegmentBytes = int64(64) << 30
	segmentAlignment    = int64(2) << 20
)

func newPoolStates() *poolStates {
	return &poolStates{pools: map[poolID]*poolState{}, nextAddress: firstAddress}
}

func (m *poolStates) findOrAddPool(r *trace.Record) *poolState {
	key := poolID{r.Group, r.Pool}
	p := m.pools[key]
	if p == nil {
		p = &poolState{segments: map[int32]*segment{}}
		if r.Group == "" {
			p.title = fmt.Sprintf("pool %d without a domain", r.Pool)
		} else {
			m.domainPoolCount++
			p.number, p.title = m.domainPoolCount, fmt.Sprintf("pool %d of group %s", r.Pool, r.Group)
		}
		m.pools[key] = p
		m.ordered = append(m.ordered, p)
	}
	return p
}

// findOrAddSegment returns the segment of a record. It creates the segment if the trace lacks the
// event that mapped the segment.
func (m *poolStates) findOrAddSegment(p *poolState, r *trace.Record) *segment {
	s := p.segments[r.Segment]
	if s == nil {
		s = &segment{address: m.nextAddress, blocks: map[int64]block{}, isSizeUnknown: true}
		m.nextAddress += unknownSegmentBytes
		p.segments[r.Segment] = s
	}
	return s
}

// apply updates the state with one record. It returns the record's pool if the sizes of the pool
// may have changed, and nil otherwise.
func (m *poolStates) apply(r *trace.Record) *poolState {
	if r.Segment < 0 {
		return nil
	}
	p := m.findOrAddPool(r)
	switch r.Kind {
	case event.KindSegment:
		p.removeSegment(r.Segment)
		p.segments[r.Segment] = &segment{address: m.nextAddress, bytes: r.Size, blocks: map[int64]block{}}
		m.nextAddress += (max(r.Size, 0) + 2*segmentAlignment - 1) / segmentAlignment * segmentAlignment
		p.mappedBytes += r.Size
	case event.KindTrim, event.KindRelease:
		p.removeSegment(r.Segment)
	case event.KindAlloc:
		s := m.findOrAddSegment(p, r)
		if s.isSizeUnknown && r.Offset+r.Size > s.bytes {
			p.mappedBytes += r.Offset + r.Size - s.bytes
			s.bytes = r.Offset + r.Size
		}
		p.removeBlock(s, r.Offset)
		s.blocks[r.Offset] = block{r.Size, r.Requested, r.Stream, false, r.Site}
		p.allocatedBytes += r.Size
	case event.KindFree, event.KindReturn:
		p.removeBlock(m.findOrAddSegment(p, r), r.Offset)
	case event.KindPark, event.KindDefer:
		if b, ok := m.findOrAddSegment(p, r).blocks[r.Offset]; ok {
			b.isFreed = true
			p.segments[r.Segment].blocks[r.Offset] = b
		}
		return nil
	default:
		return nil
	}
	return p
}

func (p *poolState) removeBlock(s *segment, offset int64) {
	if b, ok := s.blocks[offset]; ok {
		p.allocatedBytes -= b.size
		delete(s.blocks, offset)
	}
}

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
