// Package ranklist formats lists of ranks for errors and reports. A rank is the number of a process
// in the world, which contains all processes of a job, or in a group of some of them.
package ranklist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ranks formats a list of ranks, such as "rank 3" or "ranks 0-2,5".
func Ranks(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + Spans(ranks)
	}

	return "ranks " + Spans(ranks)
}

// Spans formats ascending numbers as spans, such as "0-2,5" for 0, 1, 2, 5.
func Spans(numbers []int) string {
	var b strings.Builder
	for begin := 0; begin < len(numbers); {
		end := begin + 1
		for end < len(numbers) && numbers[end] == numbers[end-1]+1 {
			end++
		}

		if begin > 0 {
			b.WriteByte(',')
		}

		first, last := numbers[begin], numbers[end-1]
		b.WriteString(strconv.Itoa(first))
		if first < last {
			fmt.Fprintf(&b, "-%d", last)
		}

		begin = end
	}

	return b.String()
}

// RanksOf formats world ranks with their numbers in a group. members lists the group's world ranks
// by these numbers. Examples for the members 0, 3 and 5:
//
//	3, 5  "world ranks 3,5 (ranks 1-2 of the group)"
//	0     "world rank 0", because the group has the same number
//	3, 4  "world ranks 3-4", because rank 4 is not a member
//
// The result is that of Ranks if members is empty, or all members have the same number in both.
func RanksOf(world, members []int) string {
	if NumberedAsWorld(members) || len(world) == 0 {
		return Ranks(world)
	}

	const notMember = -1
	numbers := make([]int, len(world)) // in the group, or notMember
	for i, rank := range world {
		numbers[i] = slices.Index(members, rank)
	}

	text := "world " + Ranks(world)
	areEqual := slices.Equal(numbers, world)
	hasOthers := slices.Contains(numbers, notMember)
	if areEqual || hasOthers {
		return text
	}

	return fmt.Sprintf("%s (%s of the group)", text, Ranks(numbers))
}

// RanksOn adds the names of the ranks' machines to RanksOf, as in "ranks 4-6 (4-5 on node-b, 6 on
// node-c)". machines holds the known names by world rank.
func RanksOn(world, members []int, machines map[int]string) string {
	text := RanksOf(world, members)
	var machineNames []string // in the order of their first rank
	ranksByName := map[string][]int{}
	for _, rank := range world {
		name, isKnown := machines[rank]
		if !isKnown {
			continue
		}

		if ranksByName[name] == nil {
			machineNames = append(machineNames, name)
		}

		ranksByName[name] = append(ranksByName[name], rank)
	}

	if len(machineNames) == 0 {
		return text
	}

	firstName := machineNames[0]
	areAllOnFirst := len(ranksByName[firstName]) == len(world)
	if areAllOnFirst {
		return text + " on " + firstName
	}

	parts := make([]string, len(machineNames))
	for i, name := range machineNames {
		parts[i] = Spans(ranksByName[name]) + " on " + name
	}

	return text + " (" + strings.Join(parts, ", ") + ")"
}

// NumberedAsWorld reports whether every member of a group has the same number in the world.
func NumberedAsWorld(members []int) bool {
	for groupRank, worldRank := range members {
		if groupRank != worldRank {
			return false
		}
	}

	return true
}
