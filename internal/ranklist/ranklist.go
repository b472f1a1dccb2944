// Package ranklist formats lists of ranks for errors and reports.
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

// Spans formats ascending numbers as a list of spans, such as "0-2,5".
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

// RanksOf formats world ranks together with their numbers in a group, as in "world rank 5 (rank 2
// of the group)". members lists the group's world ranks. If members is empty or all numbers are
// the same in the group and the world, RanksOf returns Ranks(world).
func RanksOf(world, members []int) string {
	if NumberedAsWorld(members) || len(world) == 0 {
		return Ranks(world)
	}
	group := make([]int, len(world)) // -1 for ranks that are not members
	for i, r := range world {
		group[i] = slices.Index(members, r)
	}
	text := "world " + Ranks(world)
	areAllMembers := !slices.Contains(group, -1)
	if slices.Equal(group, world) || !areAllMembers {
		return text
	}
	return fmt.Sprintf("%s (%s of the group)", text, Ranks(group))
}

// RanksOn is like RanksOf, but adds the names of the ranks' machines, as in "ranks 4-6 (4-5 on
// node-b, 6 on node-c)". machines holds the known names by world rank.
func RanksOn(world, members []int, machines map[int]string) string {
	text := RanksOf(world, members)
	var machineNames []string // in the order of their first rank
	ranksByName := map[string][]int{}
	for _, rank := range world {
		name, isKnown := machines[rank]
		if isKnown && ranksByName[name] == nil {
			machineNames = append(machineNames, name)
		}
		if isKnown {
			ranksByName[name] = append(ranksByName[name], rank)
		}
	}
	switch {
	case len(machineNames) == 0:
		return text
	case len(ranksByName[machineNames[0]]) == len(world): // all ranks are on one machine
		return text + " on " + machineNames[0]
	}
	parts := make([]string, len(machineNames))
	for i, name := range machineNames {
		parts[i] = Spans(ranksByName[name]) + " on " + name
	}
	return text + " (" + strings.Join(parts, ", ") + ")"
}

// NumberedAsWorld reports whether every rank has the same number in a group as in the world.
// members lists the group's world ranks.
func NumberedAsWorld(members []int) bool {
	for group, world := range members {
		if group != world {
			return false
		}
	}
	return true
}
