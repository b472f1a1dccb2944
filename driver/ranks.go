package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// Ranks writes a list of ranks for people: "rank 3", "ranks 0-2,5".
func Ranks(ranks []int) string { return ranklist.Ranks(ranks) }

// Spans writes numbers as "0-2,5".
func Spans(numbers []int) string { return ranklist.Spans(numbers) }

// RanksOf writes world ranks for people who may think of them as ranks of a group, whose world
// ranks members lists in group order: "world rank 5 (rank 2 of the group)". Where every rank of the
// group has one number in both, or there are no members, it is Ranks.
func RanksOf(world, members []int) string { return ranklist.RanksOf(world, members) }

// Plural returns how many there are of something, such as "1 rank" and "2 ranks".
func Plural[N int | int64 | uint64](n N, noun string) string { return ranklist.Plural(n, noun) }

// NumberedAsWorld reports whether every rank of a group has the same number there as in the world.
func NumberedAsWorld(members []int) bool { return ranklist.NumberedAsWorld(members) }

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
