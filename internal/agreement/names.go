package agreement

import (
	"fmt"
	"slices"

	"symmem/internal/ranklist"
)

// Names names ranks and pools in reports. It must be the same on all ranks. The zero value prints
// group ranks and ids of pools.
type Names struct {
	// Members lists the world ranks of the group in group order. It may be empty.
	Members []int
	// Pool names a pool by its id, such as "pool 1".
	Pool func(id uint64) string
}

// ranks formats group ranks by their world ranks, and adds the group ranks where they differ.
func (n Names) ranks(own []int) string { return ranklist.RanksOf(n.world(own), n.Members) }

// short formats ranks that the report has named before.
func (n Names) short(own []int) string {
	if ranklist.NumberedAsWorld(n.Members) {
		return ranklist.Ranks(own)
	}
	return "world " + ranklist.Ranks(slices.Sorted(slices.Values(n.world(own))))
}

// world converts group ranks to world ranks.
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

// verb returns the form of a verb that fits the number of ranks.
func verb(ranks []int, one, many string) string {
	if len(ranks) == 1 {
		return one
	}
	return many
}
