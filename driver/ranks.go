package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// Ranks formats a list of ranks for error texts, such as "rank 3" or "ranks 0-2,5".
func Ranks(ranks []int) string { return ranklist.Ranks(ranks) }

// Spans formats numbers as "0-2,5".
func Spans(numbers []int) string { return ranklist.Spans(numbers) }

// RanksOf formats world ranks together with their numbers in a group, such as "world rank 5 (rank 2
// of the group)", unless the numbers are the same or members is empty.
func RanksOf(world, members []int) string { return ranklist.RanksOf(world, members) }

// RanksOn is like RanksOf, but adds host names, such as "ranks 4-7 on node-b".
func RanksOn(world, members []int, machines map[int]string) string {
	return ranklist.RanksOn(world, members, machines)
}

// Plural formats a count with a noun, such as "1 rank" or "2 ranks".
func Plural[N int | int64 | uint64](n N, noun string) string { return ranklist.Plural(n, noun) }

// NumberedAsWorld reports whether every rank has the same number in a group as in the world.
func NumberedAsWorld(members []int) bool { return ranklist.NumberedAsWorld(members) }

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
