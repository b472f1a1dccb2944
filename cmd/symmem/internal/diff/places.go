package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// Ranks that make the same requests to a pool should get the same places. Suppose that three ranks
// allocate a block (request 0), free the block (1), and allocate another (2). On ranks 0 and 1, the
// free completes, so request 2 gets the same memory. On rank 2, a stream still uses the first
// block, so request 2 gets other memory, and comparePlaces reports a difference. Request 0 is the
// first request that all traces contain.

// place is the location of a block in a segment of memory.
type place struct {
	segment int32 // number of the segment, in the order of first use
	offset  int64 // bytes from the beginning of the segment
}

// noPlace is the place of requests other than allocations, and any unknown place.
var noPlace = place{segment: -1}

// text returns the end of a request's description, such as " -> segment 0 offset 0x200".
func (p place) text() string {
	if p == noPlace {
		return ""
	}

	return fmt.Sprintf(" -> segment %d offset 0x%x", p.segment, p.offset)
}

// numberSegments maps each Event.Segment to a number in the order of first use. These numbers can
// be compared between ranks, but Event.Segment depends on where the trace begins.
func (v *requestView) numberSegments() map[int32]int32 {
	events := v.sequence.Events
	hasRequests := len(v.events) > 0
	if v.isAnyPartial && hasRequests {
		// Partial traces lack the events before request 0, so segments used only there get no number.
		request0 := v.events[0]
		events = events[request0:]
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

// places returns the places of the first requestCount requests, which the view must have.
func (v *requestView) places(requestCount int) []place {
	segmentNumbers := v.numberSegments()
	places := make([]place, 0, requestCount)
	for request := range requestCount {
		e := v.eventOf(request)
		isPlaceKnown := e.Segment >= 0
		p := noPlace
		if e.Action == history.Alloc && isPlaceKnown {
			p = place{segment: segmentNumbers[e.Segment], offset: e.Offset}
		}

		places = append(places, p)
	}

	return places
}

// blockNumber returns the number of an event's block, which is the same on all ranks. For blocks
// allocated before request 0, it returns -1.
func (v *requestView) blockNumber(e *history.Event) int32 {
	const olderBlock = -1
	return max(olderBlock, e.Block-v.skippedBlocks)
}

// completedFree describes a free that completed between two requests.
type completedFree struct {
	block        int32 // number from blockNumber
	afterRequest int   // last request before the completion
}

// completedFrees returns the frees that completed between request 0 and the given request, in
// order.
func (v *requestView) completedFrees(request int) []completedFree {
	var frees []completedFree
	for earlier := range request {
		thisRequest, nextRequest := v.events[earlier], v.events[earlier+1]
		between := v.sequence.Events[thisRequest+1 : nextRequest]
		for i := range between {
			e := &between[i]
			if e.Action == history.FreeCompleted {
				frees = append(frees, completedFree{block: v.blockNumber(e), afterRequest: earlier})
			}
		}
	}

	return frees
}

// explainPlaces states why a request has different places. Either different frees had completed, or
// the allocators chose differently among the same blocks. Only the first member of each
// subset is compared, because the members of a subset have the same place.
func (c *comparison) explainPlaces(request int, subsets []subset) string {
	const timing = "If other streams used a block (record_stream), its free completes at a time " +
		"that varies between ranks."
	first := subsets[0]
	firstFrees := c.views[first[0]].completedFrees(request)
	for _, other := range subsets[1:] {
		otherFrees := c.views[other[0]].completedFrees(request)
		commonCount := min(len(firstFrees), len(otherFrees))
		if !slices.Equal(firstFrees[:commonCount], otherFrees[:commonCount]) {
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

// precedingPlaces describes the last requests before the given one. places[i][j] is the place of
// request j on member i.
func (c *comparison) precedingPlaces(request int, places [][]place) []string {
	const maxPreceding = 5
	const member = 0 // before request, the places are the same on all members
	v := c.views[member]
	lines := []string{}
	for i := max(0, request-maxPreceding); i < request; i++ {
		text := requestText(v.rank, v.keys[i], v.eventOf(i)) + places[member][i].text()
		lines = append(lines, fmt.Sprintf("%d: %s", i, text))
	}

	return lines
}

// placeDifference describes the first request with different places.
func (c *comparison) placeDifference(request int, places [][]place) *Difference {
	subsets := c.split(func(i, j int) bool { return places[i][request] == places[j][request] })
	d := &Difference{
		Kind: KindPlace, RequestIndex: request, MinorityRanks: c.minorityRanks(subsets),
		PrecedingRequests: c.precedingPlaces(request, places),
		Explanation:       []string{c.explainPlaces(request, subsets)},
	}
	for i, s := range subsets {
		anyMember := s[0] // all members of a subset have the same place
		variant := c.variant(s, request)
		variant.Text += places[anyMember][request].text()
		if i > 0 { // differs from the first variant
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

// comparePlaces sets c.result.PlacementDifference to the first difference of places, if any. It
// compares the first requestCount requests, which must be the same on all members.
func (c *comparison) comparePlaces(requestCount int) {
	if reason := c.noPlacesReason(); reason != "" {
		// Calls of groups never have places.
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
