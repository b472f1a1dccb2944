package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// Ranks that make the same requests to a pool should get the same places. Example: ranks 0, 1 and 2
// allocate block 0 (request 0), free it (request 1), and allocate block 1 (request 2). On ranks 0
// and 1, block 1 gets the memory of block 0: offset 0 in segment 0. On rank 2, a stream still uses
// block 0, so block 1 gets offset 0x200. comparePlaces reports that request 2 has different places.
//
//   - A member is a rank that takes part in the comparison, as an index in comparison.views. Its
//     view v lists the compared requests: request n is the event v.sequence.Events[v.events[n]].
//   - Request 0 is the first request that all traces contain. Some traces may lack older events.
//   - A place is a segment (a range of memory) and an offset in it.
//   - A free completes when no stream uses the block any more. Then, the pool can reuse the block.
//   - A subset lists the members with the same place. Here, one is {0, 1}, and another is {2}.

// place describes where a block is.
type place struct {
	segment int32 // number of the segment, in the order of first use
	offset  int64 // bytes from the beginning of the segment
}

// noPlace stands for the place of a request that is not an allocation, and for an unknown place.
var noPlace = place{segment: -1}

// text describes the place, for the end of a request's description. For noPlace, it returns "".
func (p place) text() string {
	if p == noPlace {
		return ""
	}

	return fmt.Sprintf(" -> segment %d offset 0x%x", p.segment, p.offset)
}

// numberSegments numbers the segments in the order in which events first use them. It returns the
// number of each Event.Segment. An Event.Segment depends on where the trace begins, so it cannot be
// compared between ranks.
func (v *requestView) numberSegments() map[int32]int32 {
	events := v.sequence.Events
	mayLackEvents := v.sequence.IsPartial
	hasRequests := len(v.events) > 0
	if mayLackEvents && hasRequests {
		// Segments that only older events use must get no number, as other traces may lack them.
		firstRequest := v.events[0]
		events = events[firstRequest:]
	}

	numbers := map[int32]int32{}
	for i := range events {
		segment := events[i].Segment
		isKnown := segment >= 0
		_, hasNumber := numbers[segment]
		if isKnown && !hasNumber {
			numbers[segment] = int32(len(numbers))
		}
	}

	return numbers
}

// places returns the places of the first requestCount requests. The view must have that many.
func (v *requestView) places(requestCount int) []place {
	segmentNumbers := v.numberSegments()
	places := make([]place, 0, requestCount)
	for request := range requestCount {
		e := v.eventOf(request)
		isSegmentKnown := e.Segment >= 0
		p := noPlace
		if e.Action == history.Alloc && isSegmentKnown {
			p = place{segment: segmentNumbers[e.Segment], offset: e.Offset}
		}

		places = append(places, p)
	}

	return places
}

// blockNumber returns the number of an event's block, which is the same on all ranks. Blocks from
// before request 0 all get the number -1, because not all traces contain them.
func (v *requestView) blockNumber(e *history.Event) int32 {
	const olderBlock = -1
	number := e.Block - v.skippedBlocks
	if number < 0 {
		return olderBlock
	}

	return number
}

// completedFree describes a free that completed between two requests.
type completedFree struct {
	block        int32 // from blockNumber
	afterRequest int   // the last request before the completion
}

// completedFrees returns the frees that completed between request 0 and the given request, in
// order. It ignores those that completed before, because some traces may lack them.
func (v *requestView) completedFrees(request int) []completedFree {
	var frees []completedFree
	for earlier := range request {
		start, end := v.events[earlier]+1, v.events[earlier+1]
		between := v.sequence.Events[start:end] // up to the next request
		for i := range between {
			e := &between[i]
			if e.Action == history.FreeCompleted {
				frees = append(frees, completedFree{block: v.blockNumber(e), afterRequest: earlier})
			}
		}
	}

	return frees
}

// explainPlaces states why the places of a request differ between subsets. If the completed frees
// differ, the pools had different blocks to reuse. Otherwise, the allocators chose differently
// among the same blocks. The first member of each subset serves as an example for the others.
func (c *comparison) explainPlaces(request int, subsets []subset) string {
	const timing = "If other streams used a block (record_stream), its free completes at a time " +
		"that varies between ranks."
	first := subsets[0]
	firstFrees := c.views[first[0]].completedFrees(request)
	for _, other := range subsets[1:] {
		otherFrees := c.views[other[0]].completedFrees(request)
		shorter := min(len(firstFrees), len(otherFrees)) // length of the shorter list
		haveSameBeginning := slices.Equal(firstFrees[:shorter], otherFrees[:shorter])
		if !haveSameBeginning {
			return fmt.Sprintf("The requests agree, but frees completed at different points on %s "+
				"and %s. %s", ranklist.Ranks(c.ranks(first)), ranklist.Ranks(c.ranks(other)), timing)
		}

		if len(firstFrees) != len(otherFrees) {
			return "The requests agree, but different numbers of frees had completed. " + timing
		}
	}

	return "The requests and the completed frees agree. Several free blocks were equally suitable, " +
		"and the allocator chose one by the addresses of segments, which differ between ranks."
}

// precedingPlaces describes up to five requests before the given one, with their places. places
// holds the places of all compared requests, by member and request.
func (c *comparison) precedingPlaces(request int, places [][]place) []string {
	const maxPreceding = 5
	const member = 0 // any would do: before the request, all members have the same places
	v := c.views[member]
	lines := []string{}
	for i := max(0, request-maxPreceding); i < request; i++ {
		text := requestText(v.rank, v.keys[i], v.eventOf(i)) + places[member][i].text()
		lines = append(lines, fmt.Sprintf("%d: %s", i, text))
	}

	return lines
}

// placeDifference describes the first request that has different places. places holds the places
// of all compared requests, by member and request.
func (c *comparison) placeDifference(request int, places [][]place) *Difference {
	subsets := c.split(func(i, j int) bool { return places[i][request] == places[j][request] })
	d := &Difference{
		Kind: KindPlace, RequestIndex: request, MinorityRanks: c.minorityRanks(subsets),
		PrecedingRequests: c.precedingPlaces(request, places),
		Explanation:       []string{c.explainPlaces(request, subsets)},
	}
	for i, s := range subsets {
		commonPlace := places[s[0]][request] // of all members of the subset
		variant := c.variant(s, request)
		variant.Text += commonPlace.text()
		if i > 0 { // the kind states how a variant differs from the first one
			variant.DifferenceKind = KindPlace
		}

		d.Variants = append(d.Variants, variant)
	}

	return d
}

// noPlacesReason returns why the places cannot be compared, or "" if they can.
func (c *comparison) noPlacesReason() string {
	for _, v := range c.views {
		if v.sequence.NoPlacesReason != "" {
			return v.sequence.NoPlacesReason
		}
	}

	return ""
}

// comparePlaces sets c.result.PlacementDifference to the first difference of places, if there is
// one. It compares the first requestCount requests, which must be the same on all members.
func (c *comparison) comparePlaces(requestCount int) {
	if reason := c.noPlacesReason(); reason != "" {
		// Collectives never have places, so a note about them would be useless.
		if c.match.class != history.Calls {
			c.result.Notes = append(c.result.Notes, "places were not compared: "+reason)
		}

		return
	}

	places := make([][]place, len(c.views)) // by member and request
	for member, v := range c.views {
		places[member] = v.places(requestCount)
	}

	for request := range requestCount {
		for member := range places {
			if places[member][request] != places[0][request] {
				c.result.PlacementDifference = c.placeDifference(request, places)
				return
			}
		}
	}
}
