package preflight

import (
	"cmp"
	"maps"
	"slices"
)

type slowLink struct {
	Link
	fast Link // the link of the same kind with which it was compared
}

// slowLinks returns the links whose speed is less than tolerance times the 90th percentile of their
// kind: within nodes or between nodes.
func slowLinks(all []Link, node func(rank int) string, tolerance float64) (slow []slowLink) {
	kinds := map[bool][]Link{}
	for _, l := range all {
		within := node(l.From) == node(l.To)
		kinds[within] = append(kinds[within], l)
	}

	for _, links := range kinds {
		slices.SortFunc(links, func(a, b Link) int {
			return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond)
		})
		fast := links[len(links)/10]
		for _, l := range links {
			if l.BytesPerSecond < tolerance*fast.BytesPerSecond {
				slow = append(slow, slowLink{l, fast})
			}
		}
	}

	slices.SortFunc(slow, func(a, b slowLink) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return slow
}

// blameSlowLinks returns the ranks whose links are mostly slow, and the slow links between other
// ranks.
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

		// If only one link is slow, either of its ranks may be at fault.
		if worst < 0 || count[worst] < 2 || 2*count[worst] <= total[worst] {
			return ranks, links
		}

		ranks = append(ranks, worst)
		links = slices.DeleteFunc(links, func(l slowLink) bool {
			return l.From == worst || l.To == worst
		})
	}
}
