// Package ranklist formats lists of ranks for errors and reports. Each process of a job has a world
// rank. The members of a group also have ranks in the group.
package ranklist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ranks formats ranks, as in "rank 3" or "ranks 0-2,5".
func Ranks(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + Spans(ranks)
	}

	return "ranks " + Spans(ranks)
}

// Spans formats numbers, and joins consecutive ones, as in "0-2,5" for 0, 1, 2, 5.
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

// RanksOf formats world ranks, and adds their ranks in a group if these differ. members lists the
// group's world ranks. Examples for the members 0, 3 and 5:
//
//	3, 5  "world ranks 3,5 (ranks 1-2 of the group)"
//	0     "world rank 0", which is also rank 0 of the group
//	3, 4  "world ranks 3-4", because rank 4 is not a member
//
// If members is empty or NumberedAsWorld returns true, the result is that of Ranks.
func RanksOf(worldRanks, members []int) string {
	if NumberedAsWorld(members) || len(worldRanks) == 0 {
		return Ranks(worldRanks)
	}

	text := "world " + Ranks(worldRanks)
	groupRanks := make([]int, len(worldRanks))
	for i, worldRank := range worldRanks {
		groupRank := slices.Index(members, worldRank)
		if groupRank < 0 { // not a member
			return text
		}

		groupRanks[i] = groupRank
	}

	if slices.Equal(groupRanks, worldRanks) {
		return text
	}

	return fmt.Sprintf("%s (%s of the group)", text, Ranks(groupRanks))
}

// RanksOn is RanksOf with the names of the ranks' machines, as in "ranks 4-6 (4-5 on node-b, 6 on
// node-c)". machines holds the known names by world rank.
func RanksOn(worldRanks, members []int, machines map[int]string) string {
	text := RanksOf(worldRanks, members)
	var machineNames []string // in the order of their first rank
	ranksByName := map[string][]int{}
	for _, rank := range worldRanks {
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
	areAllOnFirst := len(ranksByName[firstName]) == len(worldRanks)
	if areAllOnFirst {
		return text + " on " + firstName
	}

	parts := make([]string, len(machineNames))
	for i, name := range machineNames {
		parts[i] = Spans(ranksByName[name]) + " on " + name
	}

	return text + " (" + strings.Join(parts, ", ") + ")"
}

// NumberedAsWorld reports whether every member's rank in the group equals its world rank.
func NumberedAsWorld(members []int) bool {
	for groupRank, worldRank := range members {
		if groupRank != worldRank {
			return false
		}
	}

	return true
}

// Plural formats a number and a noun, such as "1 rank" or "2 ranks".
func Plural[N int | int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}

	return fmt.Sprintf("%d %ss", n, noun)
}
