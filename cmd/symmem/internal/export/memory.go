package export

import (
	"fmt"

	"symmem/event"
	"symmem/trace"
)

// memory holds the state of a rank's pools at a point in its trace. Traces contain no addresses, so
// memory assigns a different address to each segment. The domain of a pool is the group whose ranks
// must make the same requests to the pool.
type memory struct {
	pools       map[poolKey]*pool
	order       []*pool // in the order of first use
	domains     int64   // number of pools with a domain
	nextAddress int64   // address of the next segment
}

type poolKey struct {
	group string
	pool  uint64
}

type pool struct {
	title string
	// number counts the pools with a domain from 1, in the order of first use, which is the same on
	// all ranks. The number of a pool without a domain is 0.
	number   int64
	segments map[int32]*segment
	// allocated and mapped are the total sizes of blocks and of segments, in bytes.
	allocated, mapped int64
}

type segment struct {
	address, bytes int64
	blocks         map[int64]block // by offset
	// sizeUnknown is set if the trace lacks the event that mapped the segment. In that case, bytes
	// is the end of the last block so far.
	sizeUnknown bool
}

// block describes a block that is allocated, or freed but not yet reusable.
type block struct {
	size, requested int64
	stream          uint32
	freed           bool
	site            string
}

const (
	firstAddress = int64(1) << 40
	// unknownSizeRoom is the distance from a segment of unknown size to the next segment.
	unknownSizeRoom = int64(64) << 30
	// pageBytes is the alignment of segments.
	pageBytes = int64(2) << 20
)

func newMemory() *memory { return &memory{pools: map[poolKey]*pool{}, nextAddress: firstAddress} }

func (m *memory) poolOf(r *trace.Record) *pool {
	key := poolKey{r.Group, r.Pool}
	p := m.pools[key]
	if p == nil {
		p = &pool{segments: map[int32]*segment{}}
		if r.Group == "" {
			p.title = fmt.Sprintf("pool %d without a domain", r.Pool)
		} else {
			m.domains++
			p.number, p.title = m.domains, fmt.Sprintf("pool %d of group %s", r.Pool, r.Group)
		}
		m.pools[key] = p
		m.order = append(m.order, p)
	}
	return p
}

// segment returns the segment of a record. It creates the segment if the trace lacks the event that
// mapped the segment.
func (m *memory) segment(p *pool, r *trace.Record) *segment {
	s := p.segments[r.Segment]
	if s == nil {
		s = &segment{address: m.nextAddress, blocks: map[int64]block{}, sizeUnknown: true}
		m.nextAddress += unknownSizeRoom
		p.segments[r.Segment] = s
	}
	return s
}

// apply updates the state with one record. It returns the record's pool if the sizes of the pool
// may have changed, and nil otherwise.
func (m *memory) apply(r *trace.Record) *pool {
	if r.Segment < 0 {
		return nil
	}
	p := m.poolOf(r)
	switch r.Kind {
	case event.KindSegment:
		p.remove(r.Segment)
		p.segments[r.Segment] = &segment{address: m.nextAddress, bytes: r.Size, blocks: map[int64]block{}}
		m.nextAddress += (max(r.Size, 0) + 2*pageBytes - 1) / pageBytes * pageBytes
		p.mapped += r.Size
	case event.KindTrim, event.KindRelease:
		p.remove(r.Segment)
	case event.KindAlloc:
		s := m.segment(p, r)
		if s.sizeUnknown && r.Offset+r.Size > s.bytes {
			p.mapped += r.Offset + r.Size - s.bytes
			s.bytes = r.Offset + r.Size
		}
		p.free(s, r.Offset)
		s.blocks[r.Offset] = block{r.Size, r.Requested, r.Stream, false, r.Site}
		p.allocated += r.Size
	case event.KindFree, event.KindReturn:
		p.free(m.segment(p, r), r.Offset)
	case event.KindPark, event.KindDefer:
		if b, ok := m.segment(p, r).blocks[r.Offset]; ok {
			b.freed = true
			p.segments[r.Segment].blocks[r.Offset] = b
		}
		return nil
	default:
		return nil
	}
	return p
}

func (p *pool) free(s *segment, offset int64) {
	if b, ok := s.blocks[offset]; ok {
		p.allocated -= b.size
		delete(s.blocks, offset)
	}
}

func (p *pool) remove(ordinal int32) {
	s := p.segments[ordinal]
	if s == nil {
		return
	}
	for offset := range s.blocks {
		p.free(s, offset)
	}
	p.mapped -= s.bytes
	delete(p.segments, ordinal)
}
