package symmem

import (
	"fmt"
	"slices"

	"symmem/internal/agreement"
)

// DivergenceKind names what differs between ranks.
type DivergenceKind string

// The kinds of divergence. After DivergedValue, the group remains usable.
const (
	DivergedOperation  DivergenceKind = "operation"  // calls, such as Check and Split
	DivergedPools      DivergenceKind = "pools"      // pools that ranks have created or closed
	DivergedPlacement  DivergenceKind = "placement"  // histories of a pool
	DivergedPending    DivergenceKind = "pending"    // segments that ranks are about to register
	DivergedCollective DivergenceKind = "collective" // collectives
	DivergedValue      DivergenceKind = "value"      // calls of Group.Agree or a related method
)

// DivergenceError reports what ranks that must behave identically did differently. All ranks of the
// group return the same error, to which a rank that was late for the comparison adds its own side.
// It can be encoded as JSON. Its ranks are ranks of the world.
type DivergenceError struct {
	Group string `json:"group"`
	// Members lists the ranks in group order.
	Members []int          `json:"members"`
	Kind    DivergenceKind `json:"kind"`
	// Pool and PoolID are the pool's name and id, for DivergedPlacement and DivergedPending.
	Pool   string `json:"pool_name,omitempty"`
	PoolID uint64 `json:"pool"`
	// Position is the index of the first differing event of a DivergedPlacement. If part of the
	// history was discarded, it is between Position and Last; otherwise, Last is 0.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last,omitempty"`
	// Sides lists the distinct observations, at most 16.
	Sides []Side `json:"sides"`
	// Others lists the ranks without a place in Sides.
	Others []int `json:"others,omitempty"`
	// Deviant lists the ranks that differ from the majority, if there is one. Ranks outside any call
	// do not count.
	Deviant []int `json:"deviant"`
	// Absent lists the ranks that did not take part.
	Absent []int `json:"absent,omitempty"`
	// Why is the likely cause of a DivergedPlacement, or "unknown".
	Why     string `json:"why"`
	Message string `json:"message"`
}

// Side holds one observation and the ranks that share it.
type Side struct {
	Ranks []int `json:"ranks"`
	// Event describes an event of a pool's history, a call, or a value.
	Event string `json:"event"`
	// Site is the call's file:line. Except for values, it requires Options.CallSites.
	Site string `json:"site"`
	// Before describes up to ten earlier values, latest first.
	Before []string `json:"before,omitempty"`
}

// Error returns Message.
func (d *DivergenceError) Error() string {
	if d.Message == "" {
		return fmt.Sprintf("group %s: ranks differ (%s)", d.Group, d.Kind)
	}
	return d.Message
}

// Ranks maps each rank in Sides to its side.
func (d *DivergenceError) Ranks() map[int]Side {
	all := make(map[int]Side)
	for _, side := range d.Sides {
		for _, rank := range side.Ranks {
			all[rank] = side
		}
	}
	return all
}

// divergenceOf returns nil if the ranks agreed. members maps group ranks to world ranks, unless it
// is nil.
func divergenceOf(outcome *agreement.Outcome, group string, members []int) error {
	source := outcome.Divergence
	if source == nil {
		return nil
	}
	d := &DivergenceError{
		Group: group, Members: slices.Clone(members), Kind: DivergenceKind(source.Kind.String()),
		Pool: source.Pool(), PoolID: source.Ledger, Position: source.Position,
		Others: worldRanks(source.OtherRanks, members), Deviant: worldRanks(source.Deviant, members),
		Absent: worldRanks(source.Absent, members), Why: source.Difference.String(),
		Message: source.Error(),
	}
	if source.Last > source.Position {
		d.Last = source.Last
	}
	for _, variant := range source.Variants {
		d.Sides = append(d.Sides, Side{
			Ranks: worldRanks(variant.Ranks, members), Event: variant.Text, Site: variant.Site,
		})
	}
	return d
}

func worldRanks(groupRanks, members []int) []int {
	ranks := make([]int, 0, len(groupRanks))
	for _, r := range groupRanks {
		if members != nil {
			r = members[r]
		}
		ranks = append(ranks, r)
	}
	slices.Sort(ranks)
	return ranks
}
