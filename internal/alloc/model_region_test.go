package alloc

import (
	"cmp"
	"slices"
)

// This file contains the regions of model, a simple implementation with which tests compare a Core.
//
// A segment is divided into regions, each of which belongs to one stream. Memory above the
// high-water mark of a region is clean: no work uses it. Other streams can take the clean end of a
// region without waiting. Memory below the floor of a region is reserved: it stays with the stream.

// request records that a stream has made a request. Streams are numbered in the order of their
// first requests.
func (m *model) request(s Stream) {
	m.addStream(s)
	if s != 0 && !slices.Contains(m.requesters, s) {
		m.requesters = append(m.requesters, s)
	}
}

// returnedBlock returns b and the number of the stream that owns it. Stream 0 has number 0.
func (m *model) returnedBlock(b *modelBlock) ReturnedBlock {
	streamNumber := slices.Index(m.requesters, b.region.stream) + 1 // Index is -1 for stream 0
	return ReturnedBlock{b.block(), uint32(streamNumber)}
}

// reserve reserves the best free block for a stream, up to the rounded size of a request. There
// must be a free block of this size.
func (m *model) reserve(rounded int64, stream Stream) {
	if m.rules.config.Sizing == Stepped {
		return // streams do not share segments, so no memory must be kept from others
	}

	b := m.best(rounded, stream)
	end := b.offset + rounded
	b.region.floor = max(b.region.floor, end)
	b.region.high = max(b.region.high, end)
}

// markClean lowers the high-water mark of each region of a stream to the end of its last block
// that is used or reserved.
func (m *model) markClean(stream Stream) {
	for _, r := range m.regions() {
		if r.stream == stream {
			r.high = r.floor
		}
	}

	for _, b := range m.allBlocks() {
		if b.region.stream == stream && b.state != Free {
			b.region.high = max(b.region.high, b.offset+b.size)
		}
	}
}

// regions lists all regions by segment and offset.
func (m *model) regions() (all []*modelRegion) {
	for _, b := range m.allBlocks() {
		if len(all) == 0 || all[len(all)-1] != b.region {
			all = append(all, b.region)
		}
	}

	return all
}

// modelTail is a range of a segment from which a stream can take the end. It is either the clean
// part of a region (see tails) or free memory in one or more regions (see gaps).
type modelTail struct {
	segment  *modelSegment
	low, end int64 // offsets; the range is empty unless low is below end
}

// tails returns the clean part of each region, which is at its end. If a region is not clean at
// all, this part is empty.
func (s *modelSegment) tails() (all []modelTail) {
	for i, b := range s.blocks {
		isFirstOfRegion := i == 0 || s.blocks[i-1].region != b.region
		if isFirstOfRegion {
			all = append(all, modelTail{segment: s, low: max(b.offset, b.region.high)})
		}

		all[len(all)-1].end = b.offset + b.size // of the last block of the region so far
	}

	return all
}

// compareTails orders ranges by size and then by position.
func compareTails(a, b modelTail) int {
	return cmp.Or(cmp.Compare(a.end-a.low, b.end-b.low),
		cmp.Compare(a.segment.Ordinal, b.segment.Ordinal), cmp.Compare(a.low, b.low))
}

// modelSpan is the granularity of regions: a region begins at a multiple of it. Only the last
// region of a segment can end elsewhere.
const modelSpan = 2 * mib

// roundDownToSpan returns the last span boundary at or before an offset, which must not be
// negative.
func roundDownToSpan(offset int64) int64 { return offset / modelSpan * modelSpan }

// start returns the last span boundary at which a request fits below t.end. It is below t.low if
// the request does not fit.
func (t modelTail) start(rounded int64) int64 {
	if t.end < rounded {
		return -1
	}

	return roundDownToSpan(t.end - rounded)
}

// fits reports whether a request fits in the range.
func (t modelTail) fits(rounded int64) bool { return t.start(rounded) >= t.low }

// joinRegions merges clean regions into the previous region, and neighboring regions of one
// stream.
func (m *model) joinRegions() {
	for _, s := range m.segments {
		for i := 1; i < len(s.blocks); i++ {
			region, next := s.blocks[i-1].region, s.blocks[i].region
			isNextClean := next.high <= s.blocks[i].offset
			switch {
			case region == next:
				continue
			case isNextClean:
				s.relabel(next, region)
			case region.stream == next.stream:
				region.high = next.high
				region.floor = max(region.floor, next.floor)
				s.relabel(next, region)
			}
		}

		s.mergeFree()
	}
}

// relabel moves the blocks of one region to another.
func (s *modelSegment) relabel(old, replacement *modelRegion) {
	for _, b := range s.blocks {
		if b.region == old {
			b.region = replacement
		}
	}
}

// takeCleanMemory gives a stream the end of the smallest clean range of any stream that is large
// enough. It returns a free block for the request, or nil if there is no such range.
func (m *model) takeCleanMemory(rounded int64, stream Stream) *modelBlock {
	if m.rules.config.Sizing == Stepped {
		return nil
	}

	m.joinRegions()
	if b := m.best(rounded, stream); b != nil {
		return b
	}

	var candidates []modelTail
	for _, s := range m.segments {
		for _, t := range s.tails() {
			if t.fits(rounded) {
				candidates = append(candidates, t)
			}
		}
	}

	if len(candidates) == 0 {
		return nil
	}

	t := slices.MinFunc(candidates, compareTails)
	start := t.start(rounded)
	t.segment.splitBlock(start)
	taken := &modelRegion{stream: stream, high: start}
	for _, b := range t.segment.blocks {
		if b.offset >= start && b.offset < t.end {
			b.region = taken
		}

		isNextOfStream := b.offset == t.end && b.region.stream == stream
		if isNextOfStream {
			t.segment.relabel(taken, b.region)
		}
	}

	t.segment.mergeFree()
	return m.best(rounded, stream)
}

// seize gives a stream the end of the smallest gap that is large enough, although work of the gap's
// owners may still use it. It returns the streams that owned it, in the order of the memory. It
// takes nothing from the stream spared.
func (m *model) seize(rounded int64, stream, spared Stream) (owners []Stream) {
	m.begin()
	if m.rules.config.Sizing == Stepped {
		return nil
	}

	m.request(stream)
	var candidates []modelTail
	for _, s := range m.segments {
		for _, t := range s.gaps(stream, spared) {
			if t.end < s.Bytes { // then another region begins at the end
				t.end = roundDownToSpan(t.end)
			}

			if t.fits(rounded) {
				candidates = append(candidates, t)
			}
		}
	}

	if len(candidates) == 0 {
		return nil
	}

	t := slices.MinFunc(candidates, compareTails)
	start := t.start(rounded)
	t.segment.splitRegion(start)
	t.segment.splitRegion(t.end)
	m.frees++
	for _, b := range t.segment.blocks {
		if b.offset < start || b.offset >= t.end {
			continue
		}

		if b.region.stream != stream {
			owners = append(owners, b.region.stream)
			b.region.stream = stream
			b.region.floor = 0
		}

		b.region.high = b.offset + b.size // not clean, because work of the owner may use it
	}

	m.joinRegions()
	return owners
}

// gaps returns the ranges of free memory that a stream may seize. They exclude reserved memory and
// memory of the stream spared. A range can extend over neighboring regions.
func (s *modelSegment) gaps(stream, spared Stream) (all []modelTail) {
	lastEnd := int64(-1) // of the last range
	for _, b := range s.blocks {
		start := max(b.offset, b.region.floor)
		end := b.offset + b.size
		isAllowed := b.region.stream == stream || b.region.stream != spared
		isReserved := start >= end
		if b.state != Free || !isAllowed || isReserved {
			continue
		}

		if start != lastEnd {
			all = append(all, modelTail{segment: s, low: start})
		}

		lastEnd = end
		all[len(all)-1].end = end
	}

	return all
}

// splitRegion splits the region that contains an offset, unless a region begins there.
func (s *modelSegment) splitRegion(offset int64) {
	s.splitBlock(offset)
	for i, b := range s.blocks {
		if i == 0 || b.offset != offset || s.blocks[i-1].region != b.region {
			continue
		}

		lower := b.region
		upper := *b.region
		lower.high = min(lower.high, offset)
		lower.floor = min(lower.floor, offset)
		if upper.floor <= offset {
			upper.floor = 0 // no reserved memory
		}

		for _, later := range s.blocks[i:] {
			if later.region == lower {
				later.region = &upper
			}
		}
	}
}

// splitBlock splits the block that contains an offset, unless a block begins there.
func (s *modelSegment) splitBlock(offset int64) {
	for i, b := range s.blocks {
		if b.offset < offset && offset < b.offset+b.size {
			rest := *b
			rest.offset = offset
			rest.size = b.offset + b.size - offset
			b.size = offset - b.offset
			s.blocks = slices.Insert(s.blocks, i+1, &rest)
			return
		}
	}
}
