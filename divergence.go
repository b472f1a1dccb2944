package symmem

import (
	"fmt"
	"slices"

	"symmem/internal/agreement"
)

// DivergenceKind names what differs between ranks.
type DivergenceKind string

// The kinds of divergence. The group remains usable only after a DivergedValue.
const (
	DivergedOperation  DivergenceKind = "operation"  // different calls, such as Check and Split
	DivergedPools      DivergenceKind = "pools"      // different pools were created or closed
	DivergedPlacement  DivergenceKind = "placement"  // different histories of a shared pool
	DivergedPending    DivergenceKind = "pending"    // different segments to register with a group
	DivergedCollective DivergenceKind = "collective" // different collectives
	DivergedValue      DivergenceKind = "value"      // different values, for example in Group.Agree
)

// DivergenceError reports that ranks differ in what must be the same. For example, if ranks 0 and 1
// allocate 1 MiB from a shared pool where rank 2 allocates 2 MiB, the error has one side for ranks
// 0 and 1 and one for rank 2, and Deviant lists rank 2.
//
// All ranks of the group return the same error, except that a rank in Absent adds its own side. All
// rank numbers are world ranks. The error can be encoded as JSON.
type DivergenceError struct {
	Group string `json:"group"`
	// Members lists the group's ranks in group order.
	Members []int          `json:"members"`
	Kind    DivergenceKind `json:"kind"`
	// Pool and PoolID are the pool's name and id, for DivergedPlacement and DivergedPending.
	Pool   string `json:"pool_name,omitempty"`
	PoolID uint64 `json:"pool"`
	// Position is the index of the first event that differs in the pool's history, for
	// DivergedPlacement. If Last is not 0, the exact index is unknown, because a rank has discarded
	// old events. It lies from Position to Last.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last,omitempty"`
	// Sides lists up to 16 distinct observations. Others lists the ranks with further ones.
	Sides  []Side `json:"sides"`
	Others []int  `json:"others,omitempty"`
	// Deviant lists the ranks that differ from the majority, or is empty if there is none. Ranks in
	// Absent do not count.
	Deviant []int `json:"deviant"`
	// Absent lists the ranks that did not take part in the comparison.
	Absent []int `json:"absent,omitempty"`
	// Why is the likely cause of a DivergedPlacement, or "unknown".
	Why     string `json:"why"`
	Message string `json:"message"` // the text of the error
}

// Side is one observation and the ranks that share it.
type Side struct {
	Ranks []int `json:"ranks"`
	// Event describes the observation: an event of a pool's history, a call, or a value.
	Event string `json:"event"`
	// Site is the file:line of the call, or "" if unknown. It is known for a DivergedValue and, with
	// Options.CallSites, for other kinds.
	Site string `json:"site"`
	// Before describes up to ten earlier values, latest first, for DivergedValue.
	Before []string `json:"before,omitempty"`
}

// Error returns Message or, if it is empty, a short text.
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

// divergenceOf converts the divergence in outcome, or returns nil if the ranks agreed.
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
	isPositionUncertain := source.Last > source.Position
	if isPositionUncertain {
		d.Last = source.Last
	}

	for _, variant := range source.Variants {
		d.Sides = append(d.Sides, Side{
			Ranks: worldRanks(variant.Ranks, members), Event: variant.Text, Site: variant.Site,
		})
	}

	return d
}

// worldRanks returns the sorted world ranks of groupRanks. members maps group ranks to world ranks.
// If it is nil, they are equal.
func worldRanks(groupRanks, members []int) []int {
	ranks := make([]int, 0, len(groupRanks)) // not nil: JSON needs [] instead of null
	for _, groupRank := range groupRanks {
		rank := groupRank
		if members != nil {
			rank = members[groupRank]
		}

		ranks = append(ranks, rank)
	}

	slices.Sort(ranks)
	return ranks
}
