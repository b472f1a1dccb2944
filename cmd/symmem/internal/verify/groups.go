package verify

import (
	"context"
	"fmt"

	"symmem"
)

// openGroups opens overlapping groups. All ranks must call it. Group 0 is the world. Each other
// group contains slightly more than half of the ranks. A group without this rank is nil.
func openGroups(
	ctx context.Context, world *symmem.Group, count int,
) ([]*symmem.Group, error) {
	groups := []*symmem.Group{world}
	for group := 1; group < count; group++ {
		var g *symmem.Group // stays nil if this rank is not a member
		var err error
		if isMember(group, world.Rank(), world.Size()) {
			const color = 0 // all members are in one group
			g, err = world.Split(ctx, color, world.Rank())
		} else {
			err = world.SkipSplit(ctx)
		}

		if err != nil {
			return groups, fmt.Errorf("creating group %d: %w", group, err)
		}

		groups = append(groups, g)
	}

	return groups, nil
}

// isMember reports whether a group of a world with this number of ranks contains a rank. A group
// other than the world consists of consecutive ranks, where rank 0 follows the last rank.
func isMember(group, rank, ranks int) bool {
	if group == 0 {
		return true
	}

	firstMember := (group - 1) % ranks
	memberCount := ranks/2 + 1
	distance := (rank - firstMember + ranks) % ranks // from the first member
	return distance < memberCount
}

// membersOf returns the ranks of a group in ascending order.
func membersOf(group, ranks int) []int {
	var members []int
	for rank := range ranks {
		if isMember(group, rank, ranks) {
			members = append(members, rank)
		}
	}

	return members
}
