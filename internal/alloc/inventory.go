package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Each rank of a job has a Core, which places blocks in segments. If the Cores have the same
// layout, they place a new block at the same offset. A fault can end this: for example, it stops
// rank 1, while rank 0 goes on and adds another segment. Each rank then lists its segments and
// blocks in an Inventory, and CommonLayout computes one layout from all inventories:
//
//   - Both ranks have segment 0, with 64 MiB. They keep using it. Only rank 0 has segment 1. It is
//     retired: it serves no more requests. (So is a segment that ranks have with different sizes.)
//   - A block is live until the program frees it. Both ranks have a live block of 1 MiB in segment
//     0, at offset 0. It stays there. If rank 1 lacked it, this would be a conflict: no layout
//     would suit both ranks.
//   - A block is pinned while a captured graph uses it. If it is freed earlier, it is parked: its
//     memory stays allocated. Only rank 0 has a parked block: 1 MiB in segment 0, at offset 4 MiB.
//     Both ranks keep its range, which means that they place no block there.
//   - Segments are divided into spans of 2 MiB. Each belongs to one stream of device work. If no
//     rank has a live block in a span, the ranks can disagree about its stream. So they keep not
//     only the range of the parked block, but its whole span, from 4 MiB to 6 MiB.

// Range is a part of a segment.
type Range struct {
	Segment      int32 // ordinal: the segment's position in the order of creation, from 0
	Offset, Size int64 // in bytes
}

func (r Range) end() int64 { return r.Offset + r.Size }

// compare orders ranges by segment, then by offset, then by size.
func (r Range) compare(other Range) int {
	return cmp.Or(cmp.Compare(r.Segment, other.Segment), cmp.Compare(r.Offset, other.Offset),
		cmp.Compare(r.Size, other.Size))
}

// overlaps reports whether two ranges have a byte in common.
func (r Range) overlaps(other Range) bool {
	return r.Segment == other.Segment && r.Offset < other.end() && other.Offset < r.end()
}

// intersect returns the common part of two ranges, which must overlap.
func (r Range) intersect(other Range) Range {
	start := max(r.Offset, other.Offset)
	end := min(r.end(), other.end())
	return Range{Segment: r.Segment, Offset: start, Size: end - start}
}

// Extent is the size and use of a segment. It is zero if the segment has been unmapped or retired.
type Extent struct {
	Bytes int64
	Small bool // whether the segment serves only requests up to 1 MiB (if Sizing is Stepped)
}

// isUsed reports whether the segment serves requests.
func (e Extent) isUsed() bool { return e.Bytes > 0 }

// HeldBlock describes a block that is live, pinned or both.
type HeldBlock struct {
	Range
	Live   bool // false if the block is parked
	Pinned bool
	// Stream is a number for the stream of a live block, because ranks can name a stream differently.
	// Stream 0 has the number 0. Other streams are numbered from 1, in the order of their first live
	// blocks in the Inventory. Stream is 0 for a parked block.
	Stream uint32
}

// Inventory lists the segments and held blocks of one rank's Core.
type Inventory struct {
	Segments []Extent    // by ordinal
	Blocks   []HeldBlock // sorted by segment and offset
}

// segment returns a segment's Extent, which is zero if the rank never had the segment.
func (inventory Inventory) segment(ordinal int) Extent {
	if ordinal >= len(inventory.Segments) {
		return Extent{}
	}

	return inventory.Segments[ordinal]
}

// Arrangement describes the common layout of several Cores. Live blocks stay where they are.
type Arrangement struct {
	// Segments lists the segments by ordinal. Those with 0 bytes are retired. A retired segment stays
	// mapped while it contains a pinned block.
	Segments []Extent
	// KeptRanges lists ranges that stay allocated until the next Rebuild: those of parked blocks, and
	// those of live blocks that are pinned only on some ranks. Otherwise, this memory would become
	// free on some ranks earlier than on others.
	KeptRanges []Range
}

// Conflict describes a live block that is not the same on all ranks. Some ranks lack the block, or
// it belongs to different streams, or its segment differs.
type Conflict struct {
	Range
	Descriptions []string // what each rank has at the range, by rank
}

// CommonLayout returns a layout that suits all ranks, for Core.Rebuild. If there is none, it
// returns a Conflict. The inventories must be those of all ranks, in the same order on every rank.
func CommonLayout(inventories []Inventory) (Arrangement, *Conflict) {
	live := liveBlocks(inventories)
	if conflict := findConflict(inventories, live); conflict != nil {
		return Arrangement{}, conflict
	}

	segments := commonSegments(inventories)
	pinned := pinnedOnSomeRanks(live, len(inventories))
	parked := parkedRanges(inventories, live, segments)
	kept := mergeOverlapping(slices.Concat(pinned, parked))
	return Arrangement{Segments: segments, KeptRanges: kept}, nil
}

// liveBlocks returns all live blocks of rank 0, then those of rank 1, and so on.
func liveBlocks(inventories []Inventory) (live []HeldBlock) {
	for _, inventory := range inventories {
		for _, b := range inventory.Blocks {
			if b.Live {
				live = append(live, b)
			}
		}
	}

	return live
}

// commonSegments returns the Extents of all segments in the common layout.
func commonSegments(inventories []Inventory) (segments []Extent) {
	count := 0
	for _, inventory := range inventories {
		count = max(count, len(inventory.Segments))
	}

	for ordinal := range count {
		segments = append(segments, commonSegment(inventories, ordinal))
	}

	return segments
}

// commonSegment returns a segment's Extent in the common layout: the Extent on all ranks if it is
// the same, or else the zero Extent, which retires the segment.
func commonSegment(inventories []Inventory, ordinal int) Extent {
	common := inventories[0].segment(ordinal)
	for _, inventory := range inventories {
		if inventory.segment(ordinal) != common {
			return Extent{}
		}
	}

	return common
}

// findConflict returns the Conflict with the first range, or nil if there is none.
func findConflict(inventories []Inventory, live []HeldBlock) *Conflict {
	// Live blocks of two ranks are the same if their ranges and streams are equal.
	type liveBlock struct {
		Range
		stream uint32
	}
	rankCounts := map[liveBlock]int{} // number of ranks that have the block
	for _, b := range live {
		rankCounts[liveBlock{b.Range, b.Stream}]++
	}

	var ranges []Range // of all conflicts
	for block, rankCount := range rankCounts {
		isOnAllRanks := rankCount == len(inventories)
		isSegmentUsed := commonSegment(inventories, int(block.Segment)).isUsed()
		if !isOnAllRanks || !isSegmentUsed {
			ranges = append(ranges, block.Range)
		}
	}

	if len(ranges) == 0 {
		return nil
	}

	conflict := &Conflict{Range: slices.MinFunc(ranges, Range.compare)}
	for _, inventory := range inventories {
		conflict.Descriptions = append(conflict.Descriptions, inventory.describe(conflict.Range))
	}

	return conflict
}

// describe describes the rank's first live block that overlaps r, and its segment.
func (inventory Inventory) describe(r Range) string {
	segment := "no segment"
	if extent := inventory.segment(int(r.Segment)); extent.isUsed() {
		segment = fmt.Sprintf("segment of %d B", extent.Bytes)
	}

	for _, b := range inventory.Blocks {
		if b.Live && b.overlaps(r) {
			return fmt.Sprintf("live block of %d B (stream %d) at segment %d offset %#x, %s", b.Size,
				b.Stream, b.Segment, b.Offset, segment)
		}
	}

	return fmt.Sprintf("no live block at segment %d offset %#x, %s", r.Segment, r.Offset, segment)
}

// pinnedOnSomeRanks returns the ranges of live blocks that some ranks have pinned, but not all.
func pinnedOnSomeRanks(live []HeldBlock, ranks int) (ranges []Range) {
	pinCounts := map[Range]int{} // number of ranks that have pinned the block
	for _, b := range live {
		if b.Pinned {
			pinCounts[b.Range]++
		}
	}

	for r, pinCount := range pinCounts {
		if pinCount < ranks {
			ranges = append(ranges, r)
		}
	}

	return ranges
}

// parkedRanges returns the ranges that must be kept for parked blocks. They can overlap. A parked
// block in a retired segment needs none, because no rank places blocks there.
func parkedRanges(inventories []Inventory, live []HeldBlock, segments []Extent) (ranges []Range) {
	liveSpans := map[spanID]bool{} // spans in which some rank has a live block
	for _, b := range live {
		for _, span := range b.spans() {
			liveSpans[span] = true
		}
	}

	for _, inventory := range inventories {
		for _, b := range inventory.Blocks {
			extent := segments[b.Segment]
			if b.Live || !extent.isUsed() {
				continue
			}

			for _, span := range b.spans() {
				kept := span.rangeIn(extent)
				hasKnownStream := liveSpans[span] // the stream of its live blocks
				if hasKnownStream {
					kept = kept.intersect(b.Range)
				}

				ranges = append(ranges, kept)
			}
		}
	}

	return ranges
}

// spanBytes is the size of a span: 2 MiB.
const spanBytes = int64(spanUnits) << unitShift

// spanID identifies a span.
type spanID struct {
	segment int32 // ordinal
	number  int64 // from 0 in each segment
}

// spans returns the spans that a range overlaps, in order.
func (r Range) spans() (spans []spanID) {
	for number := r.Offset / spanBytes; number*spanBytes < r.end(); number++ {
		spans = append(spans, spanID{segment: r.Segment, number: number})
	}

	return spans
}

// rangeIn returns the range of a span. extent is that of its segment.
func (s spanID) rangeIn(extent Extent) Range {
	start := s.number * spanBytes
	size := min(spanBytes, extent.Bytes-start) // the segment can end first
	return Range{Segment: s.segment, Offset: start, Size: size}
}

// mergeOverlapping sorts ranges, and replaces those that overlap by their union.
func mergeOverlapping(ranges []Range) []Range {
	slices.SortFunc(ranges, Range.compare)
	var merged []Range
	for _, r := range ranges {
		last := len(merged) - 1
		if last >= 0 && merged[last].overlaps(r) {
			end := max(merged[last].end(), r.end())
			merged[last].Size = end - merged[last].Offset
		} else {
			merged = append(merged, r)
		}
	}

	return merged
}
