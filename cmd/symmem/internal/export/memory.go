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

type poolID struct {
	group string // ID of the group, or "" for a pool of this rank only
	pool  uint64
}

type poolState struct {
	title string // name of the pool in exported files
	// number is 0 for a pool of this rank only. Pools of groups are numbered from 1 in the order of
	// their first use, which is the same on all ranks.
	number                      int64
	segments                    map[int32]*segment // mapped segments by their number in the trace
	allocatedBytes, mappedBytes int64              // sums of the sizes of blocks and of segments
}

type segment struct {
	address, bytes int64
	blocks         map[int64]block // by offset
	// isSizeUnknown is set if the trace lacks the event that mapped the segment. bytes is then the
	// end of the last block so far.
	isSizeUnknown bool
}

type block struct {
	size, requestedSize int64
	stream              uint32
	isFreed             bool   // whether a free has been requested but has not completed
	callSite            string // of the allocation, as file:line, or ""
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
	key := poolID{r.Group, r.Pool}
	p := m.pools[key]
	if p == nil {
		p = &poolState{segments: map[int32]*segment{}}
		if r.Group == "" {
			p.title = fmt.Sprintf("pool %d without a domain", r.Pool)
		} else {
			m.sharedPoolCount++
			p.number = m.sharedPoolCount
			p.title = fmt.Sprintf("pool %d of group %s", r.Pool, r.Group)
		}
		m.pools[key] = p
		m.ordered = append(m.ordered, p)
	}
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

// apply updates the state with a record. It returns the pool whose sizes may have changed, or nil.
func (m *poolStates) apply(r *trace.Record) *poolState {
	if r.Segment < 0 {
		return nil
	}
	p := m.findOrAddPool(r)
	switch r.Kind {
	case event.KindSegment:
		p.removeSegment(r.Segment)
		p.segments[r.Segment] = &segment{address: m.nextAddress, bytes: r.Size, blocks: map[int64]block{}}
		// Round up and leave a gap to the next segment.
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
		s.blocks[r.Offset] = block{
			size: r.Size, requestedSize: r.Requested, stream: r.Stream, callSite: r.Site,
		}
		p.allocatedBytes += r.Size
	case event.KindFree, event.KindReturn:
		p.removeBlock(m.findOrAddSegment(p, r), r.Offset)
	case event.KindPark, event.KindDefer:
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
