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

// Range identifies a part of a segment.
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

// Held describes a block that is not free.
type Held struct {
	Range
	// Live reports whether a caller owns the block; other blocks are parked.
	Live bool
	// Pinned reports whether a graph holds it.
	Pinned bool
	// Stream is the number of the block's stream. The streams of live blocks are numbered from 1 in
	// the order of their first blocks by place; stream 0 keeps 0.
	Stream uint32
}

// Inventory lists the segments and blocks of a Core, for comparison between ranks.
type Inventory struct {
	Segments []Extent // by ordinal
	Blocks   []Held   // by place
}

// Arrangement describes the layout to which Cores are rebuilt.
type Arrangement struct {
	// Segments lists the segments by ordinal. A segment with 0 bytes is retired.
	Segments []Extent
	// Kept lists, by place, the ranges that do not become free before the next Rebuild: freed blocks
	// that a graph holds, and live blocks that graphs hold on some ranks only.
	Kept []Range
}

// Conflict describes a difference between live blocks, or between segments that hold live blocks.
type Conflict struct {
	Range
	// Has describes the block, or its absence, on each rank.
	Has []string
}

// Union returns the arrangement after which the Cores of several ranks place blocks identically, or
// the first live block that prevents it. It is a pure function of the inventories.
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

// span identifies one of the 2 MiB units of which regions consist, by its segment and index.
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

// at describes the live block at a place for an error message.
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
