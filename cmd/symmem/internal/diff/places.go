package diff

import (
	"fmt"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

type place struct {
	segment int32
	offset  int64
}

// places returns the places of the first n requests of a view. It numbers segments in the order of
// their first use, so that the numbers can be compared. Requests other than allocations have the
// segment -1.
func (v *view) places(n int) []place {
	numbers := map[int32]int32{}
	all := make([]place, 0, n)
	request, begin := 0, 0
	if len(v.events) > 0 && v.sequence.Partial {
		begin = int(v.events[0])
	}
	for i := begin; i < len(v.sequence.Events) && request < n; i++ {
		e := &v.sequence.Events[i]
		if e.Segment >= 0 {
			if _, ok := numbers[e.Segment]; !ok {
				numbers[e.Segment] = int32(len(numbers))
			}
		}
		if int32(i) != v.events[request] {
			continue
		}
		request++
		p := place{segment: -1}
		if e.Action == history.Alloc && e.Segment >= 0 {
			p = place{numbers[e.Segment], e.Offset}
		}
		all = append(all, p)
	}
	return all
}

// comparePlaces looks for a difference in the places of the first n requests. All members must have
// these requests.
func (c *comparison) comparePlaces(n int) {
	for _, v := range c.views {
		if reason := v.sequence.NoPlacesReason; reason != "" {
			if c.match.class != history.Calls {
				c.result.Notes = append(c.result.Notes, "places were not compared: "+reason)
			}
			return
		}
	}
	first := n
	all := make([][]place, len(c.views))
	for i, v := range c.views {
		all[i] = v.places(n)
		for at := range min(first, len(all[i])) {
			if all[i][at] != all[0][at] {
				first = at
				break
			}
		}
	}
	if first < n {
		c.result.Places = c.placeDifference(first, all)
	}
}

func (c *comparison) placeDifference(at int, all [][]place) *Difference {
	subsets := c.split(func(i, j int) bool { return all[i][at] == all[j][at] })
	d := &Difference{
		Kind: KindPlace, Index: at, Blamed: c.blamed(subsets), Before: []string{},
		Explanation: []string{},
	}
	v := c.views[subsets[0][0]]
	for i := max(0, at-5); i < at; i++ {
		d.Before = append(d.Before, fmt.Sprintf("%d: %s%s", i, requestText(v.rank, v.keys[i], v.event(i)),
			placeText(all[subsets[0][0]][i])))
	}
	for n, s := range subsets {
		variant := c.variant(s, at)
		variant.Text += placeText(all[s[0]][at])
		if n > 0 {
			variant.Kind = KindPlace
		}
		d.Variants = append(d.Variants, variant)
	}
	d.Explanation = append(d.Explanation, c.explainPlaces(subsets, at))
	return d
}

func placeText(p place) string {
	if p.segment < 0 {
		return ""
	}
	return fmt.Sprintf(" -> segment %d offset 0x%x", p.segment, p.offset)
}

// explainPlaces explains why request at was placed differently although the requests agree.
func (c *comparison) explainPlaces(subsets []subset, at int) string {
	const timing = "Another stream used the blocks (record_stream), so it depends on timing when " +
		"they become free."
	reference := c.views[subsets[0][0]].completions(at)
	for _, s := range subsets[1:] {
		other := c.views[s[0]].completions(at)
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

// completion describes a free by its block and by the number of requests before it completed.
type completion struct {
	block int32
	after int
}

// completions returns the frees that completed before request at.
func (v *view) completions(at int) []completion {
	var all []completion
	n := 0
	for i := range v.sequence.Events {
		if n < len(v.events) && int32(i) == v.events[n] {
			if n == at {
				break
			}
			n++
		}
		if e := &v.sequence.Events[i]; e.Action == history.FreeDone && n > 0 {
			all = append(all, completion{max(e.Block-v.skippedBlocks, -1), n})
		}
	}
	return all
}
