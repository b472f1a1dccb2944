// Package ranklist writes lists of ranks for people, in the words of every error and report.
package ranklist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ranks writes a list of ranks for people: "rank 3", "ranks 0-2,5".
func Ranks(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + Spans(ranks)
	}
	return "ranks " + Spans(ranks)
}

// Spans writes numbers as "0-2,5".
func Spans(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); {
		end := i
		for end+1 < len(numbers) && numbers[end+1] == numbers[end]+1 {
			end++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(numbers[i]))
		if end > i {
			fmt.Fprintf(&b, "-%d", numbers[end])
		}
		i = end + 1
	}
	return b.String()
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
