package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Extent is the size and use of a segment. The zero Extent describes a segment that serves no
// requests: it has been removed or retired.
type Extent struct {
	Bytes int64
	Small bool // with Stepped sizing, whether the segment serves only small requests
}

// Range is a part of a segment, in bytes.
type Range struct {
	Segment      int32
	Offset, Size int64
}

func (r Range) end() int64 { return r.Offset + r.Size }

func (r Range) compare(other Range) int {
	return cmp.Or(cmp.Compare(r.Segment, other.Segment), cmp.Compare(r.Offset, other.Offset),
		cmp.Compare(r.Size, other.Size))
}

// HeldBlock describes a block that is live, pinned or both.
type HeldBlock struct {
	Range
	Live   bool // false if the block is parked
	Pinned bool
	// Stream identifies the stream of a live block on all ranks: 0 for Stream 0, and other streams
	// from 1 in the order of their first live blocks in the Inventory.
	Stream uint32
}

// Inventory lists the segments and held blocks of one rank's Core, for CommonLayout.
type Inventory struct {
	Segments []Extent    // sorted by ordinal
	Blocks   []HeldBlock // sorted by segment and offset
}

// Arrangement describes the common layout of several Cores.
type Arrangement struct {
	// Segments lists the segments by ordinal. A segment with 0 bytes is retired: it serves no more
	// requests.
	Segments []Extent
	// KeptRanges lists ranges that stay allocated until the next Rebuild: parked blocks, and live
	// blocks that are pinned only on some ranks.
	KeptRanges []Range
}

// Conflict describes a range with a live block on some ranks. On others, the range has another
// block or none, or the segment or the block's stream differs.
type Conflict struct {
	Range
	Descriptions []string // contents of the range, by rank
}

// CommonLayout returns an Arrangement with which all ranks place blocks identically after Rebuild,
// or a Conflict if a live block differs. The inventories must be those of all ranks, in the same
// order on every rank.
//
// Segments that differ between ranks are retired. They stay mapped while they contain a pinned
// block.
func CommonLayout(inventories []Inventory) (Arrangement, *Conflict) {
	if c := findConflict(inventories); c != nil {
		return Arrangement{}, c
	}
	var arrangement Arrangement
	count := 0
	for _, inventory := range inventories {
		count = max(count, len(inventory.Segments))
	}
	for ordinal := range count {
		arrangement.Segments = append(arrangement.Segments, commonSegment(inventories, ordinal))
	}
	liveSpans, pinCounts := map[spanID]bool{}, map[Range]int{}
	for _, inventory := range inventories {
		for _, b := range inventory.Blocks {
			if b.Live {
				b.eachSpan(func(s spanID) { liveSpans[s] = true })
			}
			if b.Live && b.Pinned {
				pinCounts[b.Range]++
			}
		}
	}
	for r, ranks := range pinCounts {
		if ranks < len(inventories) {
			arrangement.KeptRanges = append(arrangement.KeptRanges, r)
		}
	}
	for _, inventory := range inventories {
		for _, b := range inventory.Blocks {
			if segmentBytes := arrangement.Segments[b.Segment].Bytes; segmentBytes > 0 && !b.Live {
				kept := b.rangesToKeep(liveSpans, segmentBytes)
				arrangement.KeptRanges = append(arrangement.KeptRanges, kept...)
			}
		}
	}
	arrangement.KeptRanges = mergeOverlapping(arrangement.KeptRanges)
	return arrangement, nil
}

// spanID identifies a span: 2 MiB of a segment that always belong to one stream.
type spanID struct {
	segment int32
	number  int64 // from 0
}

const spanBytes = int64(spanUnits) << unitShift

func (r Range) eachSpan(visit func(spanID)) {
	for number := r.Offset / spanBytes; number*spanBytes < r.end(); number++ {
		visit(spanID{r.Segment, number})
	}
}

// rangesToKeep returns the ranges that must stay allocated for a parked block, one for each of its
// spans. A span without live blocks is kept whole, because its owner can differ between ranks.
func (r Range) rangesToKeep(liveSpans map[spanID]bool, segmentBytes int64) (ranges []Range) {
	r.eachSpan(func(s spanID) {
		start, end := s.number*spanBytes, min((s.number+1)*spanBytes, segmentBytes)
		if liveSpans[s] {
			start, end = max(start, r.Offset), min(end, r.end())
		}
		ranges = append(ranges, Range{r.Segment, start, end - start})
	})
	return ranges
}

// commonSegment returns the Extent of a segment if it is the same on all ranks, or else the zero
// Extent.
func commonSegment(inventories []Inventory, ordinal int) Extent {
	for _, inventory := range inventories {
		if ordinal >= len(inventory.Segments) ||
			inventory.Segments[ordinal] != inventories[0].Segments[ordinal] {
			return Extent{}
		}
	}
	return inventories[0].Segments[ordinal]
}

// mergeOverlapping returns the sorted union of ranges. It sorts its argument.
func mergeOverlapping(ranges []Range) []Range {
	slices.SortFunc(ranges, Range.compare)
	var merged []Range
	for _, r := range ranges {
		if last := len(merged) - 1; last >= 0 && merged[last].Segment == r.Segment &&
			merged[last].end() > r.Offset {
			merged[last].Size = max(merged[last].end(), r.end()) - merged[last].Offset
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// findConflict returns the first range with a live block that is not the same on all ranks, or
// nil.
func findConflict(inventories []Inventory) *Conflict {
	streamsByRange := make([]map[Range]uint32, len(inventories))
	var liveRanges []Range
	for i, inventory := range inventories {
		streamsByRange[i] = map[Range]uint32{}
		for _, b := range inventory.Blocks {
			if b.Live {
				streamsByRange[i][b.Range] = b.Stream
				liveRanges = append(liveRanges, b.Range)
			}
		}
	}
	slices.SortFunc(liveRanges, Range.compare)
	for _, r := range slices.Compact(liveRanges) {
		isCommon := commonSegment(inventories, int(r.Segment)).Bytes > 0
		firstStream := streamsByRange[0][r]
		for i := range inventories {
			stream, hasBlock := streamsByRange[i][r]
			isCommon = isCommon && hasBlock && stream == firstStream
		}
		if !isCommon {
			return newConflict(inventories, r)
		}
	}
	return nil
}

func newConflict(inventories []Inventory, blockRange Range) *Conflict {
	conflict := &Conflict{Range: blockRange}
	for _, inventory := range inventories {
		conflict.Descriptions = append(conflict.Descriptions, inventory.describe(blockRange))
	}
	return conflict
}

func (inventory Inventory) describe(r Range) string {
	segment := "no segment"
	if int(r.Segment) < len(inventory.Segments) && inventory.Segments[r.Segment].Bytes > 0 {
		segment = fmt.Sprintf("segment of %d B", inventory.Segments[r.Segment].Bytes)
	}
	for _, b := range inventory.Blocks {
		if b.Live && b.Segment == r.Segment && b.Offset < r.end() && r.Offset < b.end() {
			return fmt.Sprintf("live block of %d B (stream %d) at segment %d offset %#x, %s", b.Size,
				b.Stream, b.Segment, b.Offset, segment)
		}
	}
	return fmt.Sprintf("no live block at segment %d offset %#x, %s", r.Segment, r.Offset, segment)
}
