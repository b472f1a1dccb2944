// Package ranklist formats lists of ranks for errors and reports. A rank is the number of a process
// in the world, which contains all processes of a job. In a group, which contains some of them, it
// has another number.
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

// Spans formats ascending numbers as a list of spans, such as "0-2,5" for 0, 1, 2, 5.
func Spans(numbers []int) string {
	var b strings.Builder
	first := 0 // index of the first number of the span
	for first < len(numbers) {
		last := first
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}

		if first > 0 {
			b.WriteByte(',')
		}

		b.WriteString(strconv.Itoa(numbers[first]))
		if last > first {
			fmt.Fprintf(&b, "-%d", numbers[last])
		}

		first = last + 1
	}

	return b.String()
}

// RanksOf formats ranks of the world together with their numbers in a group. members lists the
// ranks of the world that are in the group. The index of a rank in members is its number in the
// group. For example, these are results for the members 0, 3 and 5:
//
//	world ranks 3,5 (ranks 1-2 of the group)
//	world rank 0                                 the number in the group is 0, too
//	world ranks 3-4                              rank 4 is not a member
//
// If every member has the same number in the group as in the world, or if members is empty, the
// result is that of Ranks, such as "rank 3".
func RanksOf(world, members []int) string {
	if NumberedAsWorld(members) || len(world) == 0 { // NumberedAsWorld accepts an empty list
		return Ranks(world)
	}

	const notMember = -1
	numbers := make([]int, len(world)) // in the group, or notMember
	for i, rank := range world {
		numbers[i] = slices.Index(members, rank)
	}

	text := "world " + Ranks(world)
	areEqual := slices.Equal(numbers, world)
	areAllMembers := !slices.Contains(numbers, notMember)
	if areEqual || !areAllMembers {
		return text
	}

	return fmt.Sprintf("%s (%s of the group)", text, Ranks(numbers))
}

// RanksOn is like RanksOf, but adds the names of the ranks' machines, as in "ranks 4-6 (4-5 on
// node-b, 6 on node-c)". machines holds the known names by world rank.
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

// NumberedAsWorld reports whether every member of a group has the same number in the group as in
// the world. members lists the group's world ranks, as in RanksOf.
func NumberedAsWorld(members []int) bool {
	for groupRank, worldRank := range members {
		if groupRank != worldRank {
			return false
		}
	}

	return true
}
