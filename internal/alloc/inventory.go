package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Extent describes a segment in an Inventory. A trimmed segment has 0 bytes.
type Extent struct {
	Bytes int64
	Small bool // whether the segment serves small requests under Stepped sizing
}

// Range is a part of a segment, in bytes.
type Range struct {
	Segment      int32
	Offset, Size int64
}

func (r Range) end() int64 { return r.Offset + r.Size }

func (r Range) compare(o Range) int {
	return cmp.Or(cmp.Compare(r.Segment, o.Segment), cmp.Compare(r.Offset, o.Offset),
		cmp.Compare(r.Size, o.Size))
}

// Held describes a block that is not free.
type Held struct {
	Range
	Live   bool // whether the block is live rather than parked
	Pinned bool
	// Stream is the number of a live block's stream. Stream 0 has number 0, and the other streams
	// are numbered from 1 in the order in which their first live blocks appear in the segments.
	Stream uint32
}

// Inventory lists the segments and blocks of a Core, for comparison between ranks.
type Inventory struct {
	Segments []Extent // by ordinal
	Blocks   []Held   // by segment and offset
}

// Arrangement describes a layout to which several Cores can be rebuilt.
type Arrangement struct {
	// Segments lists the segments by ordinal. A segment with 0 bytes is retired.
	Segments []Extent
	// Kept lists, by segment and offset, the ranges that stay allocated until the next Rebuild:
	// freed blocks that a graph pins, and live blocks that graphs pin only on some ranks.
	Kept []Range
}

// Conflict describes a live block that differs between ranks, or whose segment does.
type Conflict struct {
	Range
	// Has describes, for each rank, the segment and the live block at this range.
	Has []string
}

// Union returns an arrangement with which the Cores of several ranks place blocks identically after
// a Rebuild. If a live block prevents that, Union returns a Conflict. The result depends only on
// the inventories.
//
// Segments that differ between ranks are retired. A rank keeps a retired segment mapped while a
// graph pins a part of it.
func Union(ranks []Inventory) (Arrangement, *Conflict) {
	if c := findConflict(ranks); c != nil {
		return Arrangement{}, c
	}
	var l Arrangement
	count := 0
	for _, r := range ranks {
		count = max(count, len(r.Segments))
	}
	for ordinal := range count {
		l.Segments = append(l.Segments, commonSegment(ranks, ordinal))
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
				l.Kept = append(l.Kept, b.keptParts(live, bytes)...)
			}
		}
	}
	l.Kept = mergeOverlapping(l.Kept)
	return l, nil
}

// span identifies 2 MiB of a segment. A region consists of whole spans.
type span struct {
	segment int32
	number  int64
}

const spanBytes = int64(spanUnits) << unitShift

func (r Range) eachSpan(f func(span)) {
	for n := r.Offset / spanBytes; n*spanBytes < r.end(); n++ {
		f(span{r.Segment, n})
	}
}

// keptParts returns the ranges to keep for a parked block, one for each span. If a span has no live
// blocks, the whole span is kept, because its owner stream may differ between ranks.
func (r Range) keptParts(live map[span]bool, bytes int64) (kept []Range) {
	r.eachSpan(func(s span) {
		start, end := s.number*spanBytes, min((s.number+1)*spanBytes, bytes)
		if live[s] {
			start, end = max(start, r.Offset), min(end, r.end())
		}
		kept = append(kept, Range{r.Segment, start, end - start})
	})
	return kept
}

func commonSegment(ranks []Inventory, ordinal int) Extent {
	for _, r := range ranks {
		if ordinal >= len(r.Segments) || r.Segments[ordinal] != ranks[0].Segments[ordinal] {
			return Extent{}
		}
	}
	return ranks[0].Segments[ordinal]
}

func mergeOverlapping(ranges []Range) []Range {
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

// findConflict returns the first live block that differs between ranks, or nil.
func findConflict(ranks []Inventory) *Conflict {
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
		same := commonSegment(ranks, int(r.Segment)).Bytes > 0
		for i := range ranks {
			stream, ok := live[i][r]
			first := live[0][r]
			same = same && ok && stream == first
		}
		if !same {
			return newConflict(ranks, r)
		}
	}
	return nil
}

func newConflict(ranks []Inventory, r Range) *Conflict {
	c := &Conflict{Range: r}
	for _, v := range ranks {
		c.Has = append(c.Has, v.describe(r))
	}
	return c
}

func (v Inventory) describe(r Range) string {
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
