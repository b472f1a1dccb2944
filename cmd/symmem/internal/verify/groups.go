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
		var g *symmem.Group
		var err error
		if isMember(group, world.Rank(), world.Size()) {
			g, err = world.Split(ctx, 0, world.Rank())
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

func isMember(group, rank, ranks int) bool {
	first := (group - 1) % ranks
	return group == 0 || (rank-first+ranks)%ranks < ranks/2+1
}

func membersOf(group, ranks int) []int {
	var members []int
	for rank := range ranks {
		if isMember(group, rank, ranks) {
			members = append(members, rank)
		}
	}
	return members
}
