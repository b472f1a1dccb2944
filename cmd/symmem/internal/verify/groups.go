package verify

import (
	"context"
	"fmt"

	"symmem"
)

// makeGroups creates the groups of a run. All ranks of the world must call it. Group 0 is the
// world. Each other group consists of consecutive ranks, slightly more than half of the world,
// and begins one rank after the previous group. Any two groups therefore overlap. A group to
// which this rank does not belong is nil.
func makeGroups(
	ctx context.Context, world *symmem.Group, count int,
) ([]*symmem.Group, error) {
	groups := []*symmem.Group{world}
	for k := 1; k < count; k++ {
		var g *symmem.Group
		var err error
		if inGroup(k, world.Rank(), world.Size()) {
			g, err = world.Split(ctx, 0, world.Rank())
		} else {
			err = world.SkipSplit(ctx)
		}
		if err != nil {
			return groups, fmt.Errorf("creating group %d: %w", k, err)
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func inGroup(k, rank, n int) bool {
	return k == 0 || (rank-(k-1)%n+n)%n < n/2+1
}

func membersOf(k, n int) []int {
	var members []int
	for rank := range n {
		if inGroup(k, rank, n) {
			members = append(members, rank)
		}
	}
	return members
}
