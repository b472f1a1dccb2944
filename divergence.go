package symmem

import (
	"fmt"
	"slices"

	"symmem/internal/agreement"
)

// DivergenceKind describes in what respect ranks have diverged.
type DivergenceKind string

// The kinds of divergence.
const (
	// DivergedOperation: the ranks are in different calls, for example one in Check and another in
	// Split.
	DivergedOperation DivergenceKind = "operation"
	// DivergedPools: the ranks have created or closed different pools.
	DivergedPools DivergenceKind = "pools"
	// DivergedPlacement: the histories of a pool differ.
	DivergedPlacement DivergenceKind = "placement"
	// DivergedPending: the histories agree, but the pending registrations differ.
	DivergedPending DivergenceKind = "pending"
	// DivergedCollective: the histories agree, but the ranks call different collectives.
	DivergedCollective DivergenceKind = "collective"
	// DivergedValue: the ranks passed different values to Group.Agree or a related method, or called
	// different methods. It is the only kind after which the group remains usable.
	DivergedValue DivergenceKind = "value"
)

// DivergenceError reports that ranks that must behave identically have diverged. It describes the
// first event that differs, and what each rank did instead. Every rank of the group returns the
// same error.
//
// All ranks are world ranks. A DivergenceError can be encoded as JSON without loss.
type DivergenceError struct {
	// Group is the id of the group whose ranks have diverged.
	Group string `json:"group"`
	// Members lists the world ranks of the group in group order.
	Members []int `json:"members"`
	// Kind describes in what respect the ranks have diverged.
	Kind DivergenceKind `json:"kind"`
	// Pool names the pool, such as "pool 1" or "pool 0 of group world/1.0". It is set for
	// DivergedPlacement and DivergedPending.
	Pool string `json:"pool_name,omitempty"`
	// PoolID is the id of the pool. It is set if Pool is.
	PoolID uint64 `json:"pool"`
	// Position is the index of the first differing event in the pool's history, for
	// DivergedPlacement. If part of the history has been discarded, the exact position may be
	// unknown; it is then between Position and Last.
	Position uint64 `json:"position"`
	// Last is 0 if Position is exact.
	Last uint64 `json:"last,omitempty"`
	// Sides has one entry for each distinct observation, but at most 16.
	Sides []Side `json:"sides"`
	// Others lists the ranks whose observations did not fit into Sides.
	Others []int `json:"others,omitempty"`
	// Deviant lists the ranks that differ from the majority. It is empty if no observation is shared
	// by more than half of the ranks that took part. If ranks are in different calls, ranks that are
	// in no call are not counted.
	Deviant []int `json:"deviant"`
	// Absent lists the ranks that did not take part.
	Absent []int `json:"absent,omitempty"`
	// Why is the likely cause of a DivergedPlacement, such as "extra event", or "unknown".
	Why string `json:"why"`
	// Message describes the divergence in one paragraph, which is the same on every rank.
	Message string `json:"message"`
}

// Side holds one observation and the ranks that share it.
type Side struct {
	// Ranks lists the world ranks that made the observation.
	Ranks []int `json:"ranks"`
	// Event describes what the ranks observed: an event of a pool's history, a call, or a value.
	Event string `json:"event"`
	// Site is the location of the call, as file:line. For events other than values, it is set only if
	// Options.CallSites is true.
	Site string `json:"site"`
	// Before describes up to ten earlier values, latest first, for DivergedValue. It includes their
	// call sites if these are recorded.
	Before []string `json:"before,omitempty"`
}

// Error describes the divergence in one paragraph.
func (d *DivergenceError) Error() string {
	if d.Message == "" {
		return fmt.Sprintf("group %s: ranks differ (%s)", d.Group, d.Kind)
	}
	return d.Message
}

// Ranks maps each world rank to its observation, except for the ranks in Others and Absent.
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
// to world ranks. It is nil for a communicator of another library, whose ranks are not converted.
func divergenceOf(v *agreement.Outcome, group string, members []int) error {
	found := v.Divergence
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

// worldRanks converts ranks of a group to world ranks, in ascending order.
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
