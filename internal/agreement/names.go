package agreement

import (
	"fmt"
	"slices"

	"symmem/internal/ranklist"
)

// Names are the words of reports for what an agreement knows by number. They must be the same on
// all ranks. The zero value gives ranks as the group numbers them, and pools by their ids.
type Names struct {
	// Members lists the world ranks of the group in group order: all of them, or none.
	Members []int
	// Pool names a pool by its id, such as "pool 1".
	Pool func(id uint64) string
}

// ranks names ranks of the group by their numbers in the world, in the order of the group, adding
// their own where they differ.
func (n Names) ranks(own []int) string { return ranklist.RanksOf(n.world(own), n.Members) }

// short is ranks for those that were named before.
func (n Names) short(own []int) string {
	if ranklist.NumberedAsWorld(n.Members) {
		return ranklist.Ranks(own)
	}
	return "world " + ranklist.Ranks(slices.Sorted(slices.Values(n.world(own))))
}

// world returns the numbers in the world of ranks of the group.
func (n Names) world(own []int) []int {
	if len(n.Members) == 0 {
		return own
	}
	world := make([]int, len(own))
	for i, r := range own {
		world[i] = n.Members[r]
	}
	return world
}

// pool names a pool.
func (n Names) pool(id uint64) string {
	if n.Pool == nil {
		return fmt.Sprintf("pool %d", id)
	}
	return n.Pool(id)
}

// verb picks the form of a verb that goes with the number of ranks.
func verb(ranks []int, one, many string) string {
	if len(ranks) == 1 {
		return one
	}
	return many
}
