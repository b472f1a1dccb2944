package agreement

import (
	"fmt"
	"slices"
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
func (n Names) ranks(own RankSet) string {
	if n.plain() || slices.Equal(own, n.World(own)) {
		return n.short(own)
	}
	var world RankSet // in group order
	for r := range own.All() {
		next := n.Members[r]
		if k := len(world); k > 0 && world[k-1].Last+1 == next {
			world[k-1].Last = next
			continue
		}
		world = append(world, RankSpan{next, next})
	}
	return fmt.Sprintf("world %s (%s of the group)", world.words(), own.words())
}

// short is ranks for those that were named before.
func (n Names) short(own RankSet) string {
	if n.plain() {
		return own.words()
	}
	return "world " + n.World(own).words()
}

// plain reports whether every rank has one number in the group and in the world.
func (n Names) plain() bool {
	for own, world := range n.Members {
		if own != world {
			return false
		}
	}
	return true
}

// World returns the numbers in the world of ranks of the group.
func (n Names) World(own RankSet) RankSet {
	if len(n.Members) == 0 {
		return own
	}
	var world RankSet
	for r := range own.All() {
		world = world.union(ranksOf(n.Members[r]))
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
