package verify

import (
	"context"
	"fmt"

	"symmem"
)

// makeGroups creates the groups of a run. The first is the world. Each other group contains a
// little more than half of the ranks, which are neighbours, and starts one rank after the previous
// group, so any two groups overlap. A group without this rank is nil. makeGroups is collective over
// the world.
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

// inGroup reports whether a rank of a world of n ranks is in group k.
func inGroup(k, rank, n int) bool {
	return k == 0 || (rank-(k-1)%n+n)%n < n/2+1
}

// membersOf lists the ranks of group k.
func membersOf(k, n int) []int {
	var members []int
	for rank := range n {
		if inGroup(k, rank, n) {
			members = append(members, rank)
		}
	}
	return members
}
