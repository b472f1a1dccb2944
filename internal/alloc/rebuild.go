package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Extent describes a segment in an Inventory. A trimmed segment has 0 bytes.
type Extent struct {
	Bytes int64
	Small bool // whether it holds small blocks, under Stepped sizing
}

// Range is a part of a segment.
type Range struct {
	Segment      int32
	Offset, Size int64
}

// end returns the offset in the segment at which the range ends.
func (r Range) end() int64 { return r.Offset + r.Size }

func (r Range) compare(o Range) int {
	return cmp.Or(cmp.Compare(r.Segment, o.Segment), cmp.Compare(r.Offset, o.Offset),
		cmp.Compare(r.Size, o.Size))
}

// Held is a block that is not free.
type Held struct {
	Range
	// Live reports whether a caller owns the block; other blocks are parked.
	Live bool
	// Pinned reports whether a graph holds it.
	Pinned bool
	// Stream is the number of the block's stream. The streams of live blocks are numbered from 1, in
	// the order of their first blocks by place; stream 0 keeps 0.
	Stream uint32
}

// Inventory lists the segments and blocks of a Core, for comparison between ranks.
type Inventory struct {
	Segments []Extent // by ordinal
	Blocks   []Held   // by place
}

// Arrangement is the layout to which a Core is rebuilt.
type Arrangement struct {
	// Segments lists the segments by ordinal. A segment with 0 bytes is retired.
	Segments []Extent
	// Kept lists, by place, the ranges that do not become free before the next Rebuild: freed blocks
	// that a graph holds, and live blocks that graphs hold on some ranks only.
	Kept []Range
}

// rebuilder takes the inventory of a Core and rebuilds its free space.
type rebuilder struct{ *Core }

// held implements Core.Held.
func (c rebuilder) held() (Inventory, error) {
	c.mergeHot()
	var all Inventory
	numbers := map[Stream]uint32{0: 0}
	for ordinal := range c.segments {
		s := &c.segments[ordinal]
		if s.bytes == 0 || s.retired {
			all.Segments = append(all.Segments, Extent{})
			continue
		}
		all.Segments = append(all.Segments, Extent{s.bytes, s.home&1 != 0})
		for v := range c.Blocks(int32(ordinal)) {
			switch {
			case v.State == Free, v.State == Parked && v.Pins == 0:
				continue
			case v.State == Deferred:
				return Inventory{}, fmt.Errorf("listing blocks: %w", ErrDeferred)
			}
			h := Held{Range: c.extentOf(v), Live: v.State == Live, Pinned: v.Pins > 0}
			if h.Live {
				if _, known := numbers[v.Stream]; !known {
					numbers[v.Stream] = uint32(len(numbers))
				}
				h.Stream = numbers[v.Stream]
			}
			all.Blocks = append(all.Blocks, h)
		}
	}
	return all, nil
}

// extentOf returns the range of a block that is not free, even if a rebuild has cut its record.
func (c rebuilder) extentOf(v View) Range {
	if r, cut := c.whole[uint32(v.Handle)]; cut {
		return r
	}
	return Range{v.Segment, v.Offset, v.Size}
}

// Conflict describes a difference between live blocks, or between segments that hold live blocks.
type Conflict struct {
	Range
	// Has describes the block, or its absence, on each rank.
	Has []string
}

// Union returns the arrangement with which the Cores of several ranks place blocks identically from
// then on, or the first live block that prevents it. It is a pure function of the inventories.
//
// Segments that differ are retired. A rank on which a graph holds a part of one keeps it mapped.
func Union(ranks []Inventory) (Arrangement, *Conflict) {
	if c := differing(ranks); c != nil {
		return Arrangement{}, c
	}
	var l Arrangement
	count := 0
	for _, r := range ranks {
		count = max(count, len(r.Segments))
	}
	for ordinal := range count {
		l.Segments = append(l.Segments, common(ranks, ordinal))
	}
	live, pins := map[span]bool{}, map[Range]int{}
	for _, r := range ranks {
		for _, b := range r.Blocks {
			if b.Live {
				b.eachSpan(func(s span) { live[s] = true })
			}
			if b.Live && b.Pinned {
				pins[b.Range]++
			}
		}
	}
	for r, n := range pins {
		if n < len(ranks) {
			l.Kept = append(l.Kept, r)
		}
	}
	for _, r := range ranks {
		for _, b := range r.Blocks {
			if bytes := l.Segments[b.Segment].Bytes; bytes > 0 && !b.Live {
				l.Kept = append(l.Kept, b.widened(live, bytes)...)
			}
		}
	}
	l.Kept = disjoint(l.Kept)
	return l, nil
}

// span identifies a unit of memory of which regions consist, by its segment and index.
type span struct {
	segment int32
	number  int64
}

// spanBytes is the size of a span.
const spanBytes = int64(spanUnits) << unitShift

// eachSpan calls a function for each span that a range touches.
func (r Range) eachSpan(f func(span)) {
	for n := r.Offset / spanBytes; n*spanBytes < r.end(); n++ {
		f(span{r.Segment, n})
	}
}

// widened returns the range to keep for a parked block. A span without live blocks is kept whole,
// since ranks may disagree about the stream that owns it.
func (r Range) widened(live map[span]bool, bytes int64) (kept []Range) {
	r.eachSpan(func(s span) {
		from, end := s.number*spanBytes, min((s.number+1)*spanBytes, bytes)
		if live[s] {
			from, end = max(from, r.Offset), min(end, r.end())
		}
		kept = append(kept, Range{r.Segment, from, end - from})
	})
	return kept
}

// common returns the segment with an ordinal if it is the same on all ranks.
func common(ranks []Inventory, ordinal int) Extent {
	for _, r := range ranks {
		if ordinal >= len(r.Segments) || r.Segments[ordinal] != ranks[0].Segments[ordinal] {
			return Extent{}
		}
	}
	return ranks[0].Segments[ordinal]
}

// disjoint sorts ranges and merges those that overlap.
func disjoint(ranges []Range) []Range {
	slices.SortFunc(ranges, Range.compare)
	var out []Range
	for _, r := range ranges {
		if last := len(out) - 1; last >= 0 && out[last].Segment == r.Segment &&
			out[last].end() > r.Offset {
			out[last].Size = max(out[last].end(), r.end()) - out[last].Offset
			continue
		}
		out = append(out, r)
	}
	return out
}

// differing returns the first live block, by place, that is not the same on all ranks, or whose
// segment differs.
func differing(ranks []Inventory) *Conflict {
	live := make([]map[Range]uint32, len(ranks))
	var all []Range
	for i, r := range ranks {
		live[i] = map[Range]uint32{}
		for _, b := range r.Blocks {
			if b.Live {
				live[i][b.Range] = b.Stream
				all = append(all, b.Range)
			}
		}
	}
	slices.SortFunc(all, Range.compare)
	for _, r := range slices.Compact(all) {
		same := common(ranks, int(r.Segment)).Bytes > 0
		for i := range ranks {
			stream, ok := live[i][r]
			first := live[0][r]
			same = same && ok && stream == first
		}
		if !same {
			return conflict(ranks, r)
		}
	}
	return nil
}

// conflict describes what each rank has at the place of a block that is live on some ranks.
func conflict(ranks []Inventory, r Range) *Conflict {
	c := &Conflict{Range: r}
	for _, of := range ranks {
		c.Has = append(c.Has, of.at(r))
	}
	return c
}

// at describes the live block at a place, for an error.
func (v Inventory) at(r Range) string {
	segment := "no segment"
	if int(r.Segment) < len(v.Segments) && v.Segments[r.Segment].Bytes > 0 {
		segment = fmt.Sprintf("segment of %d B", v.Segments[r.Segment].Bytes)
	}
	for _, b := range v.Blocks {
		if b.Live && b.Segment == r.Segment && b.Offset < r.end() && r.Offset < b.end() {
			return fmt.Sprintf("live block of %d B (stream %d) at segment %d offset %#x, %s", b.Size,
				b.Stream, b.Segment, b.Offset, segment)
		}
	}
	return fmt.Sprintf("no live block at segment %d offset %#x, %s", r.Segment, r.Offset, segment)
}

// heldBlock is a block that a rebuild leaves in place.
type heldBlock struct {
	id     uint32
	stream uint32 // index of the record of its stream
	live   bool
	Range
}

// rebuild implements Core.Rebuild.
func (c rebuilder) rebuild(l Arrangement) ([]Segment, error) {
	c.mergeHot()
	c.reports.clear()
	if len(c.deferring()) > 0 {
		return nil, fmt.Errorf("rebuilding: %w", ErrDeferred)
	}
	held := make([][]heldBlock, len(l.Segments))
	for ordinal := range c.segments {
		held[ordinal] = c.heldOf(int32(ordinal))
	}
	c.empty(held)
	c.keeps, c.whole = len(l.Kept) > 0, map[uint32]Range{}
	var gone []Segment
	for ordinal, extent := range l.Segments {
		if ordinal == len(c.segments) {
			c.segments = append(c.segments, segment{})
		}
		s := &c.segments[ordinal]
		switch {
		case s.bytes == 0:
		case extent.Bytes > 0:
			c.mapped += s.bytes
			c.counts.segments++
			c.lay(int32(ordinal), held[ordinal], l.Kept)
		case len(held[ordinal]) > 0:
			s.retired, c.keeps = true, true
			c.lay(int32(ordinal), held[ordinal], []Range{{int32(ordinal), 0, s.bytes}})
		default:
			gone = append(gone, c.segmentView(int32(ordinal)))
			*s = segment{}
		}
	}
	c.counts.peakMapped = max(c.counts.peakMapped, c.mapped)
	return gone, nil
}

// heldOf lists the blocks of a segment that are live or held by graphs, by place.
func (c rebuilder) heldOf(ordinal int32) (held []heldBlock) {
	for v := range c.Blocks(ordinal) {
		if v.State == Live || v.State == Parked && v.Pins > 0 {
			id := uint32(v.Handle)
			held = append(held, heldBlock{
				id, c.homeOf(&c.blocks[id]) / 2, v.State == Live, c.extentOf(v),
			})
		}
	}
	return held
}

// empty drops all regions, free lists, numbers of streams and all blocks except the given ones.
func (c rebuilder) empty(but [][]heldBlock) {
	stays := make([]bool, len(c.blocks))
	for _, h := range slices.Concat(but...) {
		stays[h.id] = true
	}
	c.vacant = 0
	for id := uint32(len(c.blocks) - 1); id > 0; id-- {
		c.sides[id].kept = false
		if !stays[id] {
			c.forgetUses(id)
			c.drop(&c.blocks[id], id)
		}
	}
	c.regions, c.spareRegion = c.regions[:1], 0
	c.keys, c.classes = c.keys[:1], c.classes[:1]
	c.rooms, c.unused, c.credit = [32]uint32{}, 0, 0
	clear(c.homes)
	for i := range c.streams {
		c.streams[i].number = 0
	}
	c.asking, c.mapped = 0, 0
	c.counts = counts{peak: c.counts.peak, peakMapped: c.counts.peakMapped}
	c.turn(0)
}

// forgetUses drops all uses of a block.
func (c rebuilder) forgetUses(id uint32) {
	for h := &c.sides[id]; h.uses != 0; {
		u := h.uses
		h.uses = c.uses[u].next
		c.dropUse(u)
	}
}

// lay creates the regions of a segment and its blocks: held, kept, and the free ones between them.
func (c rebuilder) lay(ordinal int32, held []heldBlock, kept []Range) {
	s := &c.segments[ordinal]
	s.home &= 1 // stream 0
	owners := c.ownersOf(s, held)
	below := uint32(0)
	for first := 0; first < len(owners); {
		end := first + 1
		for end < len(owners) && owners[end] == owners[first] {
			end++
		}
		r := c.open(ordinal, owners[first])
		if below == 0 {
			s.first = r
		} else {
			c.regions[below].next = r
		}
		held = c.fill(r, Range{
			ordinal, int64(first) * spanBytes,
			min(int64(end)*spanBytes, s.bytes) - int64(first)*spanBytes,
		}, held, kept)
		below, first = r, end
	}
}

// ownersOf returns the stream of each span of a segment, and numbers the streams of live blocks.
// Spans without live blocks are those of stream 0.
func (c rebuilder) ownersOf(s *segment, held []heldBlock) []uint32 {
	owners := make([]uint32, (s.bytes+spanBytes-1)/spanBytes)
	for i := range owners {
		owners[i] = c.record(0)
	}
	for _, h := range held {
		if h.live {
			h.eachSpan(func(s span) { owners[s.number] = h.stream })
			if o := &c.streams[h.stream]; o.name != 0 && o.number == 0 {
				c.asking++
				o.number = c.asking
			}
		}
	}
	return owners
}

// open creates an empty region of a segment for a stream.
func (c rebuilder) open(ordinal int32, owner uint32) uint32 {
	s, r, ring := &c.segments[ordinal], c.grabRegion(), c.grab()
	home := 2*owner + s.home&1
	c.regions[r] = region{
		origin: s.base, high: s.base, floor: s.base, ordinal: ordinal, home: home, ring: ring,
		owner: c.streams[owner].number,
	}
	if c.homes[home] == nil {
		c.homes[home] = new(index)
	}
	b := &c.blocks[ring]
	b.rest, b.span, b.next = uint64(vacant), uint64(ring), ring
	return r
}

// fill creates the blocks of a region in a range, and returns the held blocks after the range.
func (c rebuilder) fill(r uint32, in Range, held []heldBlock, kept []Range) []heldBlock {
	for at := in.Offset; at < in.end(); {
		end := in.end()
		if len(held) > 0 {
			end = min(end, held[0].Offset)
		}
		keep, until := within(kept, in.Segment, at)
		var id uint32
		if end == at {
			id, end, held = held[0].id, c.cut(held[0]), held[1:]
		} else {
			id, end = c.grab(), min(end, until)
		}
		c.put(r, id, Range{in.Segment, at, end - at}, keep)
		at = end
	}
	g := &c.regions[r]
	g.high = max(c.inUse(r), g.floor)
	return held
}

// cut returns where the record of a block ends. The record of a parked block ends with its span,
// since another stream may own the span above. The rest of the block is kept.
func (c rebuilder) cut(h heldBlock) int64 {
	end := min(h.end(), (h.Offset/spanBytes+1)*spanBytes)
	if h.live || end == h.end() {
		return h.end()
	}
	c.whole[h.id] = h.Range
	return end
}

// within reports whether a place lies in one of the ranges, and where that range ends.
func within(ranges []Range, ordinal int32, at int64) (in bool, until int64) {
	for _, r := range ranges {
		switch {
		case r.Segment != ordinal || r.end() <= at:
		case r.Offset <= at:
			return true, r.end()
		default:
			return false, r.Offset
		}
	}
	return false, MaxSize
}

// put appends a record to a region. A record without a block becomes a free or a kept block.
func (c rebuilder) put(r, id uint32, in Range, keep bool) {
	g, b, h := &c.regions[r], &c.blocks[id], &c.sides[id]
	ring := &c.blocks[g.ring]
	last := ring.prev()
	b.moveTo((g.origin+uint64(in.Offset)>>unitShift)<<idBits|uint64(r), uint64(in.Size)>>unitShift)
	b.setPrev(last)
	b.next = g.ring
	c.blocks[last].next = id
	ring.setPrev(id)
	if h.kept = keep; keep {
		b.rest |= sided
	}
	switch {
	case b.state() >= Live:
	case keep:
		*h = side{kept: true}
		b.rest = uint64(Parked) | sided
	default:
		c.insert(c.homes[g.home], b, id, b.units())
		return
	}
	c.count(in.Segment, b, h)
}

// count adds a block that is not free to the statistics. Blocks of retired segments count only as
// pinned.
func (c rebuilder) count(ordinal int32, b *block, h *side) {
	if h.pins > 0 {
		c.counts.pinned += b.size()
	}
	if c.segments[ordinal].retired {
		return
	}
	c.counts.used += b.size()
	c.counts.peak = max(c.counts.peak, c.counts.used)
	c.counts.requested += b.requested()
	if b.state() == Live {
		c.counts.live++
	} else {
		c.counts.parked += b.size()
	}
}
