package symmem

import (
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
)

type roster struct {
	id     string // the name in messages
	fullID string // unique among all groups, and the same on all ranks
	key    uint64 // a hash of fullID
	ranks  []int  // world ranks in group order
	rank   int    // this rank's number in the group
	limit  *driver.Limit
}

// contains reports whether all ranks of another group belong to this group.
func (r *roster) contains(other *roster) bool {
	for _, rank := range other.ranks {
		if !slices.Contains(r.ranks, rank) {
			return false
		}
	}

	return true
}

func (r *roster) divergence(v *agreement.Outcome) error { return divergenceOf(v, r.id, r.ranks) }
