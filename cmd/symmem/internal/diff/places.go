package diff

import (
	"fmt"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// placement is the place of a block.
type placement struct {
	segment int32 // number of the segment, or -1 without a place
	offset  int64 // bytes from the beginning of the segment
}

// placements returns the placements of the first count requests. It numbers segments in the order
// of their first use, so that placements on different ranks can be compared. Requests other than
// allocations have no place.
func (v *requestView) placements(count int) []placement {
	segmentNumbers := map[int32]int32{} // by Event.Segment
	firstEvent := 0
	if len(v.events) > 0 && v.sequence.IsPartial {
		firstEvent = int(v.events[0]) // other ranks may lack the earlier events
	}

	all := make([]placement, 0, count)
	for i := firstEvent; i < len(v.sequence.Events) && len(all) < count; i++ {
		e := &v.sequence.Events[i]
		if e.Segment >= 0 {
			if _, ok := segmentNumbers[e.Segment]; !ok {
				segmentNumbers[e.Segment] = int32(len(segmentNumbers))
			}
		}

		nextRequest := v.events[len(all)] // exists, because len(all) < count <= len(v.events)
		if int32(i) != nextRequest {
			continue // only numbers the segment
		}

		p := placement{segment: -1}
		if e.Action == history.Alloc && e.Segment >= 0 {
			p = placement{segment: segmentNumbers[e.Segment], offset: e.Offset}
		}

		all = append(all, p)
	}

	return all
}

// comparePlacements sets c.result.PlacementDifference to the first difference between placements.
// It compares the first count requests, which must be the same on all members.
func (c *comparison) comparePlacements(count int) {
	for _, v := range c.views {
		if reason := v.sequence.NoPlacesReason; reason != "" {
			if c.match.class != history.Calls {
				c.result.Notes = append(c.result.Notes, "places were not compared: "+reason)
			}

			return
		}
	}

	first := count // first request with different placements, or count if there is none
	byMember := make([][]placement, len(c.views))
	for i, v := range c.views {
		byMember[i] = v.placements(count)
		for request := range min(first, len(byMember[i])) {
			if byMember[i][request] != byMember[0][request] {
				first = request
				break
			}
		}
	}

	if first < count {
		c.result.PlacementDifference = c.placementDifference(first, byMember)
	}
}

// placementDifference describes the placements of a request, which differ between members. byMember
// holds the placements of all requests on each member.
func (c *comparison) placementDifference(request int, byMember [][]placement) *Difference {
	subsets := c.split(func(i, j int) bool {
		return byMember[i][request] == byMember[j][request]
	})
	d := &Difference{
		Kind: KindPlace, RequestIndex: request, MinorityRanks: c.minorityRanks(subsets),
		PrecedingRequests: []string{}, Explanation: []string{},
	}
	const maxPreceding = 5
	member := subsets[0][0] // earlier placements are the same on all members
	v := c.views[member]
	for i := max(0, request-maxPreceding); i < request; i++ {
		text := requestText(v.rank, v.keys[i], v.eventOf(i)) + placementText(byMember[member][i])
		d.PrecedingRequests = append(d.PrecedingRequests, fmt.Sprintf("%d: %s", i, text))
	}

	for i, s := range subsets {
		variant := c.variant(s, request)
		variant.Text += placementText(byMember[s[0]][request])
		if i > 0 { // differs from the first variant
			variant.DifferenceKind = KindPlace
		}

		d.Variants = append(d.Variants, variant)
	}

	d.Explanation = append(d.Explanation, c.explainPlacements(subsets, request))
	return d
}

// placementText returns the end of a request's description, or "" without a place.
func placementText(p placement) string {
	if p.segment < 0 {
		return ""
	}

	return fmt.Sprintf(" -> segment %d offset 0x%x", p.segment, p.offset)
}

// explainPlacements states why the subsets placed a request differently. Either other blocks were
// free, because frees had completed at other points, or the allocator chose another one of the same
// free blocks.
func (c *comparison) explainPlacements(subsets []subset, request int) string {
	const timing = "Another stream used the blocks (record_stream), so it depends on timing when " +
		"they become free."
	reference := c.views[subsets[0][0]].completedFrees(request)
	for _, s := range subsets[1:] {
		other := c.views[s[0]].completedFrees(request)
		for i := range min(len(reference), len(other)) {
			if reference[i] != other[i] {
				return fmt.Sprintf("The requests agree, but frees completed at other points on %s. %s",
					ranklist.Ranks(c.ranks(s)), timing)
			}
		}

		if len(reference) != len(other) {
			return "The requests agree, but different numbers of frees had completed. " + timing
		}
	}

	return "The requests and the completed frees agree. The allocator chose between equally " +
		"suitable blocks by the addresses of segments, which differ between ranks."
}

// completedFree is a free that completed after the first requestCount requests of a view.
type completedFree struct {
	block        int32 // number of the block among the compared blocks, or -1 for an older block
	requestCount int
}

// completedFrees returns the frees that completed before a request, in order. It ignores frees that
// completed before the first compared request.
func (v *requestView) completedFrees(request int) []completedFree {
	var all []completedFree
	requestCount := 0 // number of requests up to the event
	for i := range v.sequence.Events {
		isRequest := requestCount < len(v.events) && int32(i) == v.events[requestCount]
		if isRequest {
			if requestCount == request {
				break
			}

			requestCount++
		}

		e := &v.sequence.Events[i]
		if e.Action == history.FreeCompleted && requestCount > 0 {
			block := max(e.Block-v.skippedBlocks, -1)
			all = append(all, completedFree{block: block, requestCount: requestCount})
		}
	}

	return all
}
