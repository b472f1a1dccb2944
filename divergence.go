package symmem

import (
	"fmt"
	"slices"

	"symmem/internal/agreement"
)

// The ranks of a group must make the same requests to a shared pool. Suppose that the ranks 0 and 1
// allocate 1 MiB from a pool at the point where rank 2 allocates 2 MiB. A later comparison detects
// this, and all ranks return a DivergenceError. It has two sides: the allocation of the ranks 0 and
// 1, and that of rank 2. Rank 2 is deviant, because a majority of the ranks differs from it.

// DivergenceKind names what differs between ranks.
type DivergenceKind string

// The kinds of divergence. After DivergedValue, the group remains usable.
const (
	DivergedOperation  DivergenceKind = "operation"  // ranks made distinct calls: Check and Split
	DivergedPools      DivergenceKind = "pools"      // ranks created or closed distinct pools
	DivergedPlacement  DivergenceKind = "placement"  // ranks have distinct histories of a pool
	DivergedPending    DivergenceKind = "pending"    // ranks were about to register distinct segments
	DivergedCollective DivergenceKind = "collective" // ranks made distinct collectives
	DivergedValue      DivergenceKind = "value"      // Group.Agree or a related method differs
)

// DivergenceError reports how ranks differ where they must do the same. All ranks of the group
// return the same error, except that a rank that was late for the comparison adds its own side. All
// rank numbers are ranks of the world. The error can be encoded as JSON.
type DivergenceError struct {
	Group string `json:"group"`
	// Members lists the group's ranks in group order.
	Members []int          `json:"members"`
	Kind    DivergenceKind `json:"kind"`
	// Pool and PoolID are the pool's name and id, for DivergedPlacement and DivergedPending.
	Pool   string `json:"pool_name,omitempty"`
	PoolID uint64 `json:"pool"`
	// Position is the index of the first event that differs in a pool's history, for
	// DivergedPlacement. Last is then 0. But if a rank has discarded old events, the index is only
	// known to be in the range from Position to Last.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last,omitempty"`
	// Sides lists the distinct observations, at most 16.
	Sides []Side `json:"sides"`
	// Others lists ranks with further observations, if there are more than 16.
	Others []int `json:"others,omitempty"`
	// Deviant lists the ranks that differ from the majority. It is empty if there is no majority. A
	// rank that is in no call does not count.
	Deviant []int `json:"deviant"`
	// Absent lists the ranks that did not take part in the comparison.
	Absent []int `json:"absent,omitempty"`
	// Why is the likely cause of a DivergedPlacement, or "unknown".
	Why string `json:"why"`
	// Message is the text of the error.
	Message string `json:"message"`
}

// Side is one observation and the ranks that share it.
type Side struct {
	Ranks []int `json:"ranks"`
	// Event describes the observation: an event of a pool's history, a call, or a value.
	Event string `json:"event"`
	// Site is the file:line of the call, or "" if it is unknown. It is known for values and, with
	// Options.CallSites, for other calls.
	Site string `json:"site"`
	// Before describes up to ten earlier values, latest first.
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

// divergenceOf returns the divergence in an outcome as a DivergenceError, or nil if the ranks
// agreed. members maps group ranks to world ranks. If members is nil, the two are the same.
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
	isRange := source.Last > source.Position // the position is not known exactly
	if isRange {
		d.Last = source.Last
	}

	for _, variant := range source.Variants {
		d.Sides = append(d.Sides, Side{
			Ranks: worldRanks(variant.Ranks, members), Event: variant.Text, Site: variant.Site,
		})
	}

	return d
}

// worldRanks converts group ranks to world ranks, in a new sorted list. members maps group ranks to
// world ranks. If members is nil, the two are the same.
func worldRanks(groupRanks, members []int) []int {
	ranks := make([]int, 0, len(groupRanks)) // not nil, so that JSON has a list
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
