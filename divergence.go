package symmem

import (
	"fmt"
	"slices"

	"symmem/internal/agreement"
)

// DivergenceKind names what ranks differ in.
type DivergenceKind string

// The kinds of divergence.
const (
	// DivergedOperation: the ranks are in different calls, one in Check and one in Split.
	DivergedOperation DivergenceKind = "operation"
	// DivergedPools: the ranks have made, or closed, different pools.
	DivergedPools DivergenceKind = "pools"
	// DivergedPlacement: the histories of a pool differ.
	DivergedPlacement DivergenceKind = "placement"
	// DivergedPending: the histories agree, but not what is about to be registered.
	DivergedPending DivergenceKind = "pending"
	// DivergedCollective: the histories agree, but not the collective that is called.
	DivergedCollective DivergenceKind = "collective"
	// DivergedValue: the ranks have given different values, or done different things with them, in
	// Group.Agree and its kin. It is the one kind that is not final for the group.
	DivergedValue DivergenceKind = "value"
)

// DivergenceError reports that ranks which must be equal differ, and where: the first event at
// which they differ, with each rank's version. Every rank of the group gets the same error.
//
// All ranks in it are world ranks; Members translates them to those of the group. It survives
// encoding as JSON and decoding.
type DivergenceError struct {
	// Group is the id of the group whose ranks differ.
	Group string `json:"group"`
	// Members lists the world ranks of the group in group order.
	Members []int `json:"members"`
	// Kind names what they differ in.
	Kind DivergenceKind `json:"kind"`
	// Pool names the pool, such as "pool 1" or "pool 0 of group world/1.0", and PoolID is its number,
	// for DivergedPlacement and DivergedPending.
	Pool   string `json:"pool_name,omitempty"`
	PoolID uint64 `json:"pool"`
	// Position is the number of the first differing event in the pool's history, from 0, for
	// DivergedPlacement. If Last is greater, that part of the history is no longer kept, and the
	// event is one of those from Position to Last; else Last is 0.
	Position uint64 `json:"position"`
	Last     uint64 `json:"last,omitempty"`
	// Sides has one entry for each different observation; at most 16.
	Sides []Side `json:"sides"`
	// Others are ranks whose observations exceed that number.
	Others []int `json:"others,omitempty"`
	// Deviant are the ranks that differ from more than half of those that took part. It is empty if
	// there is no such majority: no rank is right because of its number. Ranks that report no call,
	// where others report different ones, are not counted and do not deviate.
	Deviant []int `json:"deviant"`
	// Absent are the ranks that did not take part.
	Absent []int `json:"absent,omitempty"`
	// Why is a hint at the kind of difference, such as "extra event", for DivergedPlacement;
	// "unknown" if there is none.
	Why string `json:"why"`
	// Message is the report in one paragraph, the same on every rank.
	Message string `json:"message"`
}

// Side describes the version that some ranks have in common.
type Side struct {
	// Ranks are the world ranks that have it.
	Ranks []int `json:"ranks"`
	// Event describes what they have: an event of a pool's history, a call, or a value.
	Event string `json:"event"`
	// Site is the line of the call, as file:line, where call sites are noted (Options.CallSites), and
	// for values always; else empty.
	Site string `json:"site"`
	// Before, for DivergedValue, describes at most ten earlier values of any name, the latest first,
	// with their lines where call sites are noted.
	Before []string `json:"before,omitempty"`
}

// Error returns the report in one paragraph.
func (d *DivergenceError) Error() string {
	if d.Message == "" {
		return fmt.Sprintf("group %s: ranks differ (%s)", d.Group, d.Kind)
	}
	return d.Message
}

// Ranks returns what each rank has, by world rank, without those in Others and Absent.
func (d *DivergenceError) Ranks() map[int]Side {
	all := make(map[int]Side)
	for _, side := range d.Sides {
		for _, rank := range side.Ranks {
			all[rank] = side
		}
	}
	return all
}

// divergenceOf returns what an agreement has found as an error, or nil. Members are the world ranks
// of those that agreed; nil leaves their ranks as they are, for another library's communicator.
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
	for _, one := range found.Variants {
		d.Sides = append(d.Sides,
			Side{Ranks: worldRanks(one.Ranks, members), Event: one.What, Site: one.Site})
	}
	return d
}

// worldRanks returns the world ranks of ranks of a group, ascending.
func worldRanks(own, members []int) []int {
	ranks := make([]int, 0, len(own))
	for _, r := range own {
		if members != nil {
			r = members[r]
		}
		ranks = append(ranks, r)
	}
	slices.Sort(ranks)
	return ranks
}
