package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Ranks writes a list of ranks for people: "rank 3", "ranks 1, 2".
func Ranks(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]")
}

// RanksOf writes world ranks for people who may think of them as ranks of a group, whose world
// ranks members lists in group order: "world rank 5 (rank 2 of the group)". Where every rank of the
// group has one number in both, or there are no members, it is Ranks.
func RanksOf(world, members []int) string {
	if NumberedAsWorld(members) || len(world) == 0 {
		return Ranks(world)
	}
	own := make([]int, len(world))
	for i, r := range world {
		own[i] = slices.Index(members, r)
	}
	text := "world " + Ranks(world)
	if slices.Equal(own, world) || slices.Contains(own, -1) {
		return text
	}
	return fmt.Sprintf("%s (%s of the group)", text, Ranks(own))
}

// NumberedAsWorld reports whether every rank of a group has the same number there as in the world.
func NumberedAsWorld(members []int) bool {
	for own, world := range members {
		if own != world {
			return false
		}
	}
	return true
}

// writeActivity adds what ranks are doing.
func writeActivity(b *strings.Builder, activity map[int]string, members []int) {
	world := "world "
	if NumberedAsWorld(members) {
		world = ""
	}
	for _, r := range sortedRanks(activity) {
		fmt.Fprintf(b, "; %srank %d: %s", world, r, activity[r])
	}
}

func sortedRanks(m map[int]string) []int { return slices.Sorted(maps.Keys(m)) }
