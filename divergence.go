package symmem

import (
	"fmt"
	"slices"

	"symmem/internal/agreement"
)

// DivergenceKind describes in what respect ranks have diverged.
type DivergenceKind string

const (
	// DivergedOperation means that the ranks are in different calls, such as Check and Split.
	DivergedOperation DivergenceKind = "operation"
	// DivergedPools means that the ranks have created or closed different pools.
	DivergedPools DivergenceKind = "pools"
	// DivergedPlacement means that the histories of a pool differ.
	DivergedPlacement DivergenceKind = "placement"
	// DivergedPending means that the pending registrations differ.
	DivergedPending DivergenceKind = "pending"
	// DivergedCollective means that the ranks call different collectives.
	DivergedCollective DivergenceKind = "collective"
	// DivergedValue means that the ranks passed different values to Group.Agree or a related
	// method, or called different methods. The group remains usable.
	DivergedValue DivergenceKind = "value"
)

// DivergenceError reports that ranks that must behave identically have diverged. It describes the
// first event that differs, and what each rank did instead. Every rank of the group returns the
// same error, which can be encoded as JSON without loss. All ranks in it are world ranks.
type DivergenceError struct {
	Group string `json:"group"`
	// Members lists the group's ranks in group order.
	Members []int          `json:"members"`
	Kind    DivergenceKind `json:"kind"`
	// Pool names the pool, such as "pool 0 of group world/1.0", and PoolID is its id, for
	// DivergedPlacement and DivergedPending.
	Pool   string `json:"pool_name,omitempty"`
	PoolID uint64 `json:"pool"`
	// Position is the index of the first differing event in the pool's history, for
	// DivergedPlacement. If part of the history has been discarded, the index is between Position
	// and Last; otherwise, Last is 0.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last,omitempty"`
	// Sides has one entry for each distinct observation, but at most 16.
	Sides []Side `json:"sides"`
	// Others lists the ranks whose observations did not fit into Sides.
	Others []int `json:"others,omitempty"`
	// Deviant lists the ranks that differ from a majority of the ranks that took part, if there is
	// one. If ranks are in different calls, ranks that are in no call do not count.
	Deviant []int `json:"deviant"`
	// Absent lists the ranks that did not take part.
	Absent []int `json:"absent,omitempty"`
	// Why is the likely cause of a DivergedPlacement, such as "extra event", or "unknown".
	Why     string `json:"why"`
	Message string `json:"message"`
}

// Side holds one observation and the ranks that share it.
type Side struct {
	Ranks []int `json:"ranks"`
	// Event describes what the ranks observed: an event of a pool's history, a call, or a value.
	Event string `json:"event"`
	// Site is the location of the call, as file:line. Except for values, it requires
	// Options.CallSites.
	Site string `json:"site"`
	// Before describes up to ten earlier values and their call sites, latest first, for
	// DivergedValue.
	Before []string `json:"before,omitempty"`
}

// Error returns Message.
func (d *DivergenceError) Error() string {
	if d.Message == "" {
		return fmt.Sprintf("group %s: ranks differ (%s)", d.Group, d.Kind)
	}
	return d.Message
}

// Ranks maps each rank to its observation, except for the ranks in Others and Absent.
func (d *DivergenceError) Ranks() map[int]Side {
	all := make(map[int]Side)
	for _, side := range d.Sides {
		for _, rank := range side.Ranks {
			all[rank] = side
		}
	}
	return all
}

// divergenceOf converts the divergence in an outcome, if any, to an error. members maps group ranks
// to world ranks. If it is nil, ranks are not converted.
func divergenceOf(outcome *agreement.Outcome, group string, members []int) error {
	found := outcome.Divergence
	if found == nil {
		return nil
	}
	d := &DivergenceError{
		Group: group, Members: slices.Clone(members), Kind: DivergenceKind(found.Kind.String()),
		Pool: found.Pool(), PoolID: found.Ledger, Position: found.Position,
		Others: worldRanks(found.Others, members), Deviant: worldRanks(found.Deviant, members),
		Absent: worldRanks(found.Absent, members), Why: found.Difference.String(), Message: found.Error(),
	}
	if found.Last > found.Position {
		d.Last = found.Last
	}
	for _, variant := range found.Variants {
		d.Sides = append(d.Sides, Side{
			Ranks: worldRanks(variant.Ranks, members), Event: variant.What, Site: variant.Site,
		})
	}
	return d
}

// worldRanks converts group ranks to sorted world ranks.
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
