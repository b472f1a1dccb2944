package alloc

import (
	"cmp"
	"slices"
)

// request records that a stream has made a request, in whose order streams are numbered.
func (m *model) request(s Stream) {
	m.addStream(s)
	if s != 0 && !slices.Contains(m.requesters, s) {
		m.requesters = append(m.requesters, s)
	}
}

func (m *model) returnedBlock(b *modelBlock) ReturnedBlock {
	return ReturnedBlock{b.block(), uint32(slices.Index(m.requesters, b.region.stream) + 1)}
}

// reserve reserves the best free block for a stream, up to the rounded size.
func (m *model) reserve(rounded int64, stream Stream) {
	if m.rules.config.Sizing == Stepped {
		return // streams do not share segments, so no memory must be kept from others
	}
	b := m.best(rounded, stream)
	b.region.floor = max(b.region.floor, b.offset+rounded)
	b.region.high = max(b.region.high, b.offset+rounded)
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

// tails returns the clean part of each region, which is at its end. If a region is not clean at
// all, low is not below end.
func (s *modelSegment) tails() (all []modelTail) {
	for i, b := range s.blocks {
		isFirstOfRegion := i == 0 || s.blocks[i-1].region != b.region
		if isFirstOfRegion {
			all = append(all, modelTail{segment: s, region: b.region, low: max(b.offset, b.region.high)})
		}
		all[len(all)-1].end = b.offset + b.size
	}
	return all
}

// modelTail is a range of a segment from which a stream can take the end.
type modelTail struct {
	segment  *modelSegment
	region   *modelRegion // nil if the range is a gap
	low, end int64        // offsets
}

// compareTails orders ranges by size and then by position.
func compareTails(a, b modelTail) int {
	return cmp.Or(cmp.Compare(a.end-a.low, b.end-b.low),
		cmp.Compare(a.segment.Ordinal, b.segment.Ordinal), cmp.Compare(a.low, b.low))
}

// start returns the last span boundary at which a request fits below t.end. It is below t.low if
// the request does not fit.
func (t modelTail) start(rounded int64) int64 {
	if t.end < rounded {
		return -1
	}
	return (t.end - rounded) / (2 * mib) * (2 * mib)
}

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

// takeCleanMemory gives a stream clean memory of other streams, and returns a free block that is
// large enough, or nil.
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
			if t.start(rounded) >= t.low {
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
	region := &modelRegion{stream: stream, high: start}
	for _, b := range t.segment.blocks {
		if b.offset >= start && b.offset < t.end {
			b.region = region
		}
		if b.offset == t.end && b.region.stream == stream {
			t.segment.relabel(region, b.region)
		}
	}
	t.segment.mergeFree()
	return m.best(rounded, stream)
}

// seize gives a stream free memory of streams except spared, and returns the streams that owned
// it.
func (m *model) seize(rounded int64, stream, spared Stream) (owners []Stream) {
	m.begin()
	if m.rules.config.Sizing == Stepped {
		return nil
	}
	m.request(stream)
	var candidates []modelTail
	for _, s := range m.segments {
		for _, t := range s.gaps(stream, spared) {
			if t.end < s.Bytes {
				t.end = t.end / (2 * mib) * (2 * mib)
			}
			if t.start(rounded) >= t.low {
				candidates = append(candidates, t)
			}
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	t := slices.MinFunc(candidates, compareTails)
	t.low = t.start(rounded)
	t.segment.splitRegion(t.low)
	t.segment.splitRegion(t.end)
	m.frees++
	for _, b := range t.segment.blocks {
		if b.offset < t.low || b.offset >= t.end {
			continue
		}
		if b.region.stream != stream {
			owners = append(owners, b.region.stream)
			b.region.stream, b.region.floor = stream, 0
		}
		b.region.high = b.offset + b.size
	}
	m.joinRegions()
	return owners
}

// gaps returns the ranges of free memory that a stream may seize. They exclude reserved memory and
// memory of the stream spared.
func (s *modelSegment) gaps(stream, spared Stream) (all []modelTail) {
	end := int64(-1)
	for _, b := range s.blocks {
		start := max(b.offset, b.region.floor)
		allowed := b.region.stream == stream || b.region.stream != spared
		if b.state != Free || !allowed || start >= b.offset+b.size {
			continue
		}
		if start != end {
			all = append(all, modelTail{segment: s, low: start})
		}
		end = b.offset + b.size
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
		low, upper := b.region, *b.region
		low.high, low.floor = min(low.high, offset), min(low.floor, offset)
		if upper.floor <= offset {
			upper.floor = 0
		}
		for _, b := range s.blocks[i:] {
			if b.region == low {
				b.region = &upper
			}
		}
	}
}

// splitBlock splits the block that contains an offset, unless a block begins there.
func (s *modelSegment) splitBlock(offset int64) {
	for i, b := range s.blocks {
		if b.offset < offset && offset < b.offset+b.size {
			rest := *b
			rest.offset, rest.size = offset, b.offset+b.size-offset
			b.size = offset - b.offset
			s.blocks = slices.Insert(s.blocks, i+1, &rest)
			return
		}
	}
}
