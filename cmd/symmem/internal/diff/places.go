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

// places returns the places of the first n requests of a view. Segments are numbered in the
// order of their first use since the beginning of the comparison. The place of a free has the
// segment -1.
func (v *view) places(n int) []place {
	numbers := map[int32]int32{}
	all := make([]place, 0, n)
	at := 0
	begin := 0
	if len(v.events) > 0 && v.sequence.Partial {
		begin = int(v.events[0])
	}
	for i := begin; i < len(v.sequence.Events) && at < n; i++ {
		e := &v.sequence.Events[i]
		if e.Segment >= 0 {
			if _, ok := numbers[e.Segment]; !ok {
				numbers[e.Segment] = int32(len(numbers))
			}
		}
		if int32(i) != v.events[at] {
			continue
		}
		at++
		p := place{segment: -1}
		if e.Action == history.Alloc && e.Segment >= 0 {
			p = place{numbers[e.Segment], e.Offset}
		}
		all = append(all, p)
	}
	return all
}

// comparePlaces looks for a difference in the places of the first n requests, which must be the
// same on all members.
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
	groups := c.groupsAt(func(i, j int) bool { return all[i][at] == all[j][at] })
	d := &Difference{
		Kind: KindPlace, Index: at, Blamed: c.blamed(groups), Before: []string{}, Explanation: []string{},
	}
	v := c.views[groups[0][0]]
	for i := max(0, at-5); i < at; i++ {
		d.Before = append(d.Before, fmt.Sprintf("%d: %s%s", i, requestText(v.rank, v.keys[i], v.event(i)),
			placeText(all[groups[0][0]][i])))
	}
	for n, g := range groups {
		variant := c.variant(g, at)
		variant.Text += placeText(all[g[0]][at])
		if n > 0 {
			variant.Kind = KindPlace
		}
		d.Variants = append(d.Variants, variant)
	}
	d.Explanation = append(d.Explanation, c.whyPlace(groups, at))
	return d
}

func placeText(p place) string {
	if p.segment < 0 {
		return ""
	}
	return fmt.Sprintf(" -> segment %d offset 0x%x", p.segment, p.offset)
}

// whyPlace explains a difference in places: either different frees had completed by then, or the
// addresses of segments have decided.
func (c *comparison) whyPlace(groups []group, at int) string {
	reference := c.views[groups[0][0]].completions(at)
	for _, g := range groups[1:] {
		other := c.views[g[0]].completions(at)
		for i := range min(len(reference), len(other)) {
			if reference[i] != other[i] {
				return fmt.Sprintf("The requests agree, but frees of %s completed at other points: "+
					"another stream used the blocks (record_stream), so the time decides.",
					ranklist.Ranks(c.ranks(g)))
			}
		}
		if len(reference) != len(other) {
			return "The requests agree, but another number of frees had completed: another stream " +
				"used the blocks (record_stream), so the time decides."
		}
	}
	return "The requests and the completed frees agree, so the addresses of segments, which differ " +
		"between ranks, have decided."
}

// completion describes a free by its block and by the number of requests before it completed.
type completion struct {
	block int32
	after int
}

// completions returns the frees that completed before the request with the index at.
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
			all = append(all, completion{max(e.Block-v.skipped, -1), n})
		}
	}
	return all
}
