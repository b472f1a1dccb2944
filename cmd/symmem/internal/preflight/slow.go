package preflight

import (
	"cmp"
	"maps"
	"slices"
)

// slowLink describes a link that is slower than others of its kind.
type slowLink struct {
	Link
	fast float64 // speed of fast links of its kind, in bytes per second
}

// slowLinks returns the links whose speed is less than tolerance times that of fast links of the
// same kind. There are two kinds: links within nodes and links between nodes. The speed of fast
// links is the 90th percentile of the speeds of their kind.
func slowLinks(all []Link, node func(rank int) string, tolerance float64) (slow []slowLink) {
	kinds := map[bool][]Link{}
	for _, l := range all {
		within := node(l.From) == node(l.To)
		kinds[within] = append(kinds[within], l)
	}
	for _, links := range kinds {
		slices.SortFunc(links, func(a, b Link) int { return cmp.Compare(b.BytesPerS, a.BytesPerS) })
		fast := links[len(links)/10].BytesPerS
		for _, l := range links {
			if l.BytesPerS < tolerance*fast {
				slow = append(slow, slowLink{l, fast})
			}
		}
	}
	slices.SortFunc(slow, func(a, b slowLink) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return slow
}

// blameSlowLinks determines the causes of slow links. It returns the ranks most of whose links are
// slow, and the slow links between other ranks. all holds all links.
func blameSlowLinks(slow []slowLink, all []Link) (ranks []int, links []slowLink) {
	total := map[int]int{}
	for _, l := range all {
		total[l.From]++
		total[l.To]++
	}
	links = slices.Clone(slow)
	for {
		count := map[int]int{}
		for _, l := range links {
			count[l.From]++
			count[l.To]++
		}
		worst := -1
		for _, rank := range slices.Sorted(maps.Keys(count)) {
			if worst < 0 || count[rank] > count[worst] {
				worst = rank
			}
		}
		// A single slow link does not show which of its ends is at fault.
		if worst < 0 || count[worst] < 2 || 2*count[worst] <= total[worst] {
			return ranks, links
		}
		ranks = append(ranks, worst)
		links = slices.DeleteFunc(links, func(l slowLink) bool {
			return l.From == worst || l.To == worst
		})
	}
}
