package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// place is the location of a block. Ranks that make the same requests to a pool should get the same
// places.
type place struct {
	segment int32 // number of the segment of memory, in the order of first use
	offset  int64 // bytes from the beginning of the segment
}

// noPlace is the place of a request that is not an allocation, or whose place is unknown.
var noPlace = place{segment: -1}

// text returns a suffix for the text of a request, such as " -> segment 0 offset 0x200".
func (p place) text() string {
	if p == noPlace {
		return ""
	}

	return fmt.Sprintf(" -> segment %d offset 0x%x", p.segment, p.offset)
}

// comparePlaces sets c.result.PlacementDifference to the first difference of places, if any. The
// first requestCount requests must be the same on all members.
func (c *comparison) comparePlaces(requestCount int) {
	if reason := c.noPlacesReason(); reason != "" {
		hasPool := c.match.class != history.Calls
		if hasPool {
			c.result.Notes = append(c.result.Notes, "places were not compared: "+reason)
		}

		return
	}

	placesByMember := make([][]place, len(c.views))
	isAnyPartial := slices.ContainsFunc(c.members, c.match.isPartial)
	for member, v := range c.views {
		events := v.sequence.Events
		if isAnyPartial { // some traces lack the events before request 0, so ignore these in all
			events = v.viewedEvents()
		}

		placesByMember[member] = v.places(requestCount, numberSegments(events))
	}

	for request := range requestCount {
		for _, places := range placesByMember {
			if places[request] != placesByMember[0][request] {
				c.result.PlacementDifference = c.placeDifference(request, placesByMember)
				return
			}
		}
	}
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

// viewedEvents returns the events from the first compared request on, or all if there is none.
func (v *requestView) viewedEvents() []history.Event {
	if len(v.eventIndexes) == 0 {
		return v.sequence.Events
	}

	return v.sequence.Events[v.eventIndexes[0]:]
}

// numberSegments numbers the segments in the order of first use. The result maps the index of each
// segment in the trace, which depends on the rank, to its number.
func numberSegments(events []history.Event) map[int32]int32 {
	numbers := map[int32]int32{}
	for i := range events {
		segment := events[i].Segment
		isSegmentKnown := segment >= 0
		_, hasNumber := numbers[segment]
		if isSegmentKnown && !hasNumber {
			numbers[segment] = int32(len(numbers))
		}
	}

	return numbers
}

// places returns the places of the first requestCount requests.
func (v *requestView) places(requestCount int, segmentNumbers map[int32]int32) []place {
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

// placeDifference describes the first request with different places.
func (c *comparison) placeDifference(request int, placesByMember [][]place) *Difference {
	subsets := c.split(func(i, j int) bool {
		return placesByMember[i][request] == placesByMember[j][request]
	})
	const anyMember = 0 // earlier places are the same on all members
	d := &Difference{
		Kind: KindPlace, RequestIndex: request, MinorityRanks: c.minorityRanks(subsets),
		PrecedingRequests: c.views[anyMember].precedingPlaces(request, placesByMember[anyMember]),
		Explanation:       []string{c.explainPlaces(request, subsets)},
	}
	for i, s := range subsets {
		variant := c.variant(s, request)
		firstMember := s[0]
		variant.Text += placesByMember[firstMember][request].text()
		if i > 0 {
			variant.DifferenceKind = KindPlace
		}

		d.Variants = append(d.Variants, variant)
	}

	return d
}

// precedingPlaces describes the last requests before the given one. places contains their places.
func (v *requestView) precedingPlaces(request int, places []place) []string {
	const maxPreceding = 5
	lines := []string{}
	for i := max(0, request-maxPreceding); i < request; i++ {
		text := requestText(v.rank, v.keys[i], v.eventOf(i)) + places[i].text()
		lines = append(lines, fmt.Sprintf("%d: %s", i, text))
	}

	return lines
}

// explainPlaces states why a request has different places. Either different frees had completed, or
// the allocators chose differently among the same blocks. Only the first member of each subset is
// examined.
func (c *comparison) explainPlaces(request int, subsets []subset) string {
	const timing = "If other streams used a block (record_stream), its free completes at a time " +
		"that varies between ranks."
	first := subsets[0]
	firstFrees := c.views[first[0]].completedFrees(request)
	for _, other := range subsets[1:] {
		otherFrees := c.views[other[0]].completedFrees(request)
		minCount := min(len(firstFrees), len(otherFrees))
		if !slices.Equal(firstFrees[:minCount], otherFrees[:minCount]) {
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

// completedFree describes a freed block that no stream uses any more, so it can be reused.
type completedFree struct {
	block        int32 // number from blockNumber
	afterRequest int   // last request before the completion
}

// completedFrees returns the frees that completed between request 0 and the given one, in order.
func (v *requestView) completedFrees(request int) []completedFree {
	var frees []completedFree
	for earlier := range request {
		begin, end := v.eventIndexes[earlier]+1, v.eventIndexes[earlier+1]
		between := v.sequence.Events[begin:end]
		for i := range between {
			e := &between[i]
			if e.Action == history.FreeCompleted {
				frees = append(frees, completedFree{block: v.blockNumber(e), afterRequest: earlier})
			}
		}
	}

	return frees
}
