package export

import (
	"fmt"

	"symmem/event"
	"symmem/trace"
)

// A pool maps segments of memory, and places blocks in them. A trace gives the places of blocks as
// offsets in segments, and contains no addresses. But the exported files need addresses, so
// poolStates invents one for each segment. For example, it applies these records of a trace:
//
//	segment 0 has 2 MiB               its address is 1<<40; 2 MiB are mapped
//	alloc 512 B at offset 4096        the block has the address 1<<40 + 4096; 512 B are allocated
//	defer the block at offset 4096    it is freed, but still in use; 512 B are allocated
//	return the block at offset 4096   0 B are allocated
//
// A trace may have lost its oldest records. If the record of a segment is missing, its size is
// unknown. Then poolStates assumes that the segment ends with its last block so far.

// poolStates holds the state of a rank's pools after some records of its trace.
type poolStates struct {
	pools           map[poolID]*poolState
	ordered         []*poolState // in the order of first use
	sharedPoolCount int64        // number of pools that the ranks of a group share
	nextAddress     int64        // of the next segment
}

// poolID identifies a pool of the rank.
type poolID struct {
	group string // ID of the group whose ranks share the pool, or "" for a pool of this rank only
	pool  uint64 // ID of the pool in the trace
}

// poolState holds the state of a pool.
type poolState struct {
	title string // name of the pool in exported files
	// number is 0 for a pool of this rank only. Shared pools are numbered from 1, in the order of
	// their first use. This order is the same on all ranks.
	number         int64
	segments       map[int32]*segment // mapped segments, by number
	mappedBytes    int64              // sum of the sizes of segments
	allocatedBytes int64              // sum of the sizes of blocks
}

type segment struct {
	address       int64 // invented
	bytes         int64 // size, or the end of the last block so far if the size is unknown
	isSizeUnknown bool
	blocks        map[int64]block // by offset
}

type block struct {
	size          int64  // in bytes
	requestedSize int64  // in bytes; the program requested this size, which can be smaller
	isFreed       bool   // the program has freed the block, but it may still be in use
	callSite      string // of the allocation, as file:line, or "" if unknown
}

// Invented addresses.
const (
	firstAddress        = int64(1) << 40  // of the first segment
	segmentAlignment    = int64(2) << 20  // addresses of segments are multiples of it
	unknownSegmentBytes = int64(64) << 30 // space for a segment of unknown size
)

func newPoolStates() *poolStates {
	return &poolStates{pools: map[poolID]*poolState{}, nextAddress: firstAddress}
}

// apply updates the state with a record. It returns the pool whose mappedBytes or allocatedBytes
// may have changed, or nil if there is none.
func (m *poolStates) apply(r *trace.Record) *poolState {
	isAboutSegment := r.Segment >= 0
	if !isAboutSegment {
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
	case event.KindPark, event.KindDefer: // the block is still in use
		s := m.findOrAddSegment(p, r)
		s.markFreed(r.Offset)
		return nil
	default:
		return nil
	}

	return p
}

// findOrAddPool returns the pool of a record.
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

// addSegment adds the segment of a record. It replaces an older segment with the same number.
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

// findOrAddSegment returns the segment of a record. If the segment is not known, the trace has lost
// its record, so findOrAddSegment adds a segment of unknown size.
func (m *poolStates) findOrAddSegment(p *poolState, r *trace.Record) *segment {
	s := p.segments[r.Segment]
	if s == nil {
		s = &segment{address: m.nextAddress, blocks: map[int64]block{}, isSizeUnknown: true}
		m.nextAddress += unknownSegmentBytes
		p.segments[r.Segment] = s
	}

	return s
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

// addBlock adds the block of a record. It replaces an older block at the same offset.
func (m *poolStates) addBlock(p *poolState, r *trace.Record) {
	s := m.findOrAddSegment(p, r)
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

// markFreed sets isFreed of the block at an offset, if there is one.
func (s *segment) markFreed(offset int64) {
	if b, isKnown := s.blocks[offset]; isKnown {
		b.isFreed = true
		s.blocks[offset] = b
	}
}

// removeBlock removes the block at an offset, if there is one.
func (p *poolState) removeBlock(s *segment, offset int64) {
	if b, isKnown := s.blocks[offset]; isKnown {
		p.allocatedBytes -= b.size
		delete(s.blocks, offset)
	}
}

// roundUp rounds n, which must not be negative, up to a multiple of unit.
func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }
