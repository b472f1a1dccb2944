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
	DivergedOperation  DivergenceKind = "operation"  // ranks made distinct calls: Check and Split
	DivergedPools      DivergenceKind = "pools"      // ranks created or closed distinct pools
	DivergedPlacement  DivergenceKind = "placement"  // ranks have distinct histories of a pool
	DivergedPending    DivergenceKind = "pending"    // ranks were about to register distinct segments
	DivergedCollective DivergenceKind = "collective" // ranks made distinct collectives
	DivergedValue      DivergenceKind = "value"      // Group.Agree or a related method differs
)

// DivergenceError reports that ranks behaved differently where they must behave identically, and
// in what they differ. All ranks of the group return the same error, except that a rank that was
// late for the comparison adds its own side. All rank numbers are ranks of the world. The error
// can be encoded as JSON.
type DivergenceError struct {
	Group string `json:"group"`
	// Members lists the group's ranks in group order.
	Members []int          `json:"members"`
	Kind    DivergenceKind `json:"kind"`
	// Pool and PoolID are the pool's name and id, for DivergedPlacement and DivergedPending.
	Pool   string `json:"pool_name,omitempty"`
	PoolID uint64 `json:"pool"`
	// Position is the index of the first differing event of a DivergedPlacement, and Last is 0. If
	// part of the history was discarded, the index is only known to be from Position to Last.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last,omitempty"`
	// Sides lists the distinct observations, at most 16.
	Sides []Side `json:"sides"`
	// Others lists the ranks that are missing from Sides, because there are too many observations.
	Others []int `json:"others,omitempty"`
	// Deviant lists the ranks that differ from the majority. It is empty if there is no majority.
	// Ranks outside any call do not count.
	Deviant []int `json:"deviant"`
	// Absent lists the ranks that did not take part in the comparison.
	Absent []int `json:"absent,omitempty"`
	// Why is the likely cause of a DivergedPlacement, or "unknown".
	Why string `json:"why"`
	// Message is the text of the error.
	Message string `json:"message"`
}

// Side holds one observation and the ranks that share it.
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

// divergenceOf returns the divergence in an outcome as a DivergenceError, or nil if the ranks
// agreed. members maps group ranks to world ranks. If members is nil, the two are the same.
func divergenceOf(outcome *agreement.Outcome, group string, members []int) error {
	source := outcome.Divergence
	if source == nil {
		return nil // an error that is nil, not a nil *DivergenceError
	}

	d := &DivergenceError{
		Group: group, Members: slices.Clone(members), Kind: DivergenceKind(source.Kind.String()),
		Pool: source.Pool(), PoolID: source.Ledger, Position: source.Position,
		Others: worldRanks(source.OtherRanks, members), Deviant: worldRanks(source.Deviant, members),
		Absent: worldRanks(source.Absent, members), Why: source.Difference.String(),
		Message: source.Error(),
	}
	if source.Last > source.Position { // the position is not known exactly
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
