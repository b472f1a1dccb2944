package alloc

import (
	"cmp"
	"fmt"
	"slices"
)

// Extent is the size and use of a segment. The zero Extent describes a segment that serves no
// requests: the segment has been removed or retired (see Arrangement.Segments).
type Extent struct {
	Bytes int64
	Small bool // whether the segment serves only small requests; false unless Sizing is Stepped
}

// Range is a part of a segment.
type Range struct {
	Segment      int32 // ordinal of the segment
	Offset, Size int64 // in bytes
}

func (r Range) end() int64 { return r.Offset + r.Size }

// compare orders ranges by segment, then by offset, then by size.
func (r Range) compare(other Range) int {
	return cmp.Or(cmp.Compare(r.Segment, other.Segment), cmp.Compare(r.Offset, other.Offset),
		cmp.Compare(r.Size, other.Size))
}

// HeldBlock describes a block that is live, pinned or both.
type HeldBlock struct {
	Range
	Live   bool // false if the block is parked: freed, but pinned by a captured graph
	Pinned bool
	// Stream numbers the stream of a live block in a way that ranks can compare. Stream 0 has the
	// number 0. Other streams are numbered from 1, in the order of their first live blocks in the
	// Inventory. Stream is 0 for a parked block.
	Stream uint32
}

// Inventory lists the segments and held blocks of one rank's Core, for CommonLayout.
type Inventory struct {
	Segments []Extent    // by ordinal (position in the order of creation, from 0)
	Blocks   []HeldBlock // sorted by segment and offset
}

// Arrangement describes the common layout of several Cores.
type Arrangement struct {
	// Segments lists the segments by ordinal. A segment with 0 bytes is retired: it serves no more
	// requests.
	Segments []Extent
	// KeptRanges lists ranges that stay allocated until the next Rebuild: parked blocks, and live
	// blocks that are pinned only on some ranks. Otherwise, these blocks would become free on some
	// ranks earlier than on others.
	KeptRanges []Range
}

// Conflict describes a live block that is not the same on all ranks. For example, rank 0 has a live
// block at the range, and rank 1 has none. The block can also belong to different streams, or the
// segments differ.
type Conflict struct {
	Range
	Descriptions []string // what each rank has at the range, by rank
}

// CommonLayout returns an Arrangement for Core.Rebuild, after which all ranks place blocks
// identically. If a live block differs between ranks, it returns a Conflict instead. The
// inventories must be those of all ranks, in the same order on every rank.
//
// Segments that differ between ranks are retired. They stay mapped while they contain a pinned
// block.
func CommonLayout(inventories []Inventory) (Arrangement, *Conflict) {
	if c := findConflict(inventories); c != nil {
		return Arrangement{}, c
	}

	var arrangement Arrangement
	segmentCount := 0
	for _, inventory := range inventories {
		segmentCount = max(segmentCount, len(inventory.Segments))
	}

	for ordinal := range segmentCount {
		arrangement.Segments = append(arrangement.Segments, commonSegment(inventories, ordinal))
	}

	liveSpans := map[spanID]bool{}
	pinningRanks := map[Range]int{} // numbers of ranks on which a live block is pinned
	for _, inventory := range inventories {
		for _, b := range inventory.Blocks {
			if !b.Live {
				continue
			}

			b.eachSpan(func(s spanID) { liveSpans[s] = true })
			if b.Pinned {
				pinningRanks[b.Range]++
			}
		}
	}

	// The order in which a map is iterated does not matter: mergeOverlapping sorts the ranges.
	for r, rankCount := range pinningRanks {
		if rankCount < len(inventories) {
			arrangement.KeptRanges = append(arrangement.KeptRanges, r)
		}
	}

	for _, inventory := range inventories {
		for _, b := range inventory.Blocks {
			segmentBytes := arrangement.Segments[b.Segment].Bytes
			isRetired := segmentBytes == 0
			if !b.Live && !isRetired {
				kept := b.rangesToKeep(liveSpans, segmentBytes)
				arrangement.KeptRanges = append(arrangement.KeptRanges, kept...)
			}
		}
	}

	arrangement.KeptRanges = mergeOverlapping(arrangement.KeptRanges)
	return arrangement, nil
}

// spanID identifies a span: 2 MiB of a segment, starting at a multiple of 2 MiB. Free memory moves
// between streams in whole spans.
type spanID struct {
	segment int32
	number  int64 // from 0 in each segment
}

const spanBytes = int64(spanUnits) << unitShift

// eachSpan visits the spans that a range touches.
func (r Range) eachSpan(visit func(spanID)) {
	for number := r.Offset / spanBytes; number*spanBytes < r.end(); number++ {
		visit(spanID{segment: r.Segment, number: number})
	}
}

// rangesToKeep returns the ranges that must stay allocated for a parked block at r. There is one
// range for each span that the block touches. A span without live blocks is kept whole, because the
// stream that owns it can differ between ranks.
func (r Range) rangesToKeep(liveSpans map[spanID]bool, segmentBytes int64) (ranges []Range) {
	r.eachSpan(func(s spanID) {
		start := s.number * spanBytes
		end := min(start+spanBytes, segmentBytes)
		if liveSpans[s] {
			start = max(start, r.Offset)
			end = min(end, r.end())
		}

		ranges = append(ranges, Range{Segment: r.Segment, Offset: start, Size: end - start})
	})
	return ranges
}

// commonSegment returns the Extent of a segment if all ranks have the same Extent. Otherwise, it
// returns the zero Extent.
func commonSegment(inventories []Inventory, ordinal int) Extent {
	for _, inventory := range inventories {
		if ordinal >= len(inventory.Segments) ||
			inventory.Segments[ordinal] != inventories[0].Segments[ordinal] {
			return Extent{}
		}
	}

	return inventories[0].Segments[ordinal] // exists: the loop has checked all ranks
}

// mergeOverlapping returns the sorted union of ranges. It sorts its argument.
func mergeOverlapping(ranges []Range) []Range {
	slices.SortFunc(ranges, Range.compare)
	var merged []Range
	for _, r := range ranges {
		if len(merged) == 0 {
			merged = append(merged, r)
			continue
		}

		last := &merged[len(merged)-1]
		isOverlapping := last.Segment == r.Segment && last.end() > r.Offset
		if isOverlapping {
			last.Size = max(last.end(), r.end()) - last.Offset
		} else {
			merged = append(merged, r)
		}
	}

	return merged
}

// findConflict returns the first range with a live block that is not the same on all ranks, or
// nil.
func findConflict(inventories []Inventory) *Conflict {
	streamsByRange := make([]map[Range]uint32, len(inventories)) // streams of live blocks, by rank
	var liveRanges []Range
	for rank, inventory := range inventories {
		streamsByRange[rank] = map[Range]uint32{}
		for _, b := range inventory.Blocks {
			if b.Live {
				streamsByRange[rank][b.Range] = b.Stream
				liveRanges = append(liveRanges, b.Range)
			}
		}
	}

	slices.SortFunc(liveRanges, Range.compare)
	for _, r := range slices.Compact(liveRanges) {
		isCommon := commonSegment(inventories, int(r.Segment)).Bytes > 0
		firstStream := streamsByRange[0][r] // 0 if rank 0 lacks the block
		for rank := range inventories {
			stream, hasBlock := streamsByRange[rank][r]
			if !hasBlock || stream != firstStream {
				isCommon = false
			}
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

// describe returns the text of Conflict.Descriptions for one rank. A live block that only overlaps
// r is described, too.
func (inventory Inventory) describe(r Range) string {
	segment := "no segment"
	if int(r.Segment) < len(inventory.Segments) && inventory.Segments[r.Segment].Bytes > 0 {
		segment = fmt.Sprintf("segment of %d B", inventory.Segments[r.Segment].Bytes)
	}

	for _, b := range inventory.Blocks {
		isOverlapping := b.Segment == r.Segment && b.Offset < r.end() && r.Offset < b.end()
		if b.Live && isOverlapping {
			return fmt.Sprintf("live block of %d B (stream %d) at segment %d offset %#x, %s", b.Size,
				b.Stream, b.Segment, b.Offset, segment)
		}
	}

	return fmt.Sprintf("no live block at segment %d offset %#x, %s", r.Segment, r.Offset, segment)
}
