package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// GroupConfig describes a group of ranks to connect. A world rank is a number among all processes.
// A group rank is a number in a group. If Ranks is [4, 6], for example, the world rank 6 has the
// group rank 1.
type GroupConfig struct {
	ID    string // the same on all ranks
	Title string // replaces ID in error texts, unless empty
	Ranks []int  // world ranks, by group rank
	Rank  int    // group rank of this rank
	// Check makes ranks compare the Digest of every call before they use its result.
	Check bool
	// Strict makes the group fail with a MessageError if a Send and its Recv follow different
	// numbers of collectives. It is the same on every rank.
	Strict  bool
	Formula Formula // order in which reductions combine elements
	// Timeout replaces Config.Timeout, unless it is nil.
	Timeout *Limit
	// Machines holds host names by group rank, with "" for unknown names. It is nil if all ranks are
	// on one machine.
	Machines []string
	// Owner, if not nil, identifies the group in its Faults.
	Owner any
}

// WithTimeout returns a copy of g in which a nil Timeout is replaced by a Limit of fallback.
func (g GroupConfig) WithTimeout(fallback time.Duration) GroupConfig {
	if g.Timeout == nil {
		g.Timeout = NewLimit(fallback)
	}

	return g
}

// Fault wraps err, which made the group fail, in a Fault with the group's Owner. It returns err if
// the group has no Owner, or if err is nil or already has this Owner.
func (g GroupConfig) Fault(err error) error {
	if err == nil || g.Owner == nil {
		return err
	}

	var fault *Fault
	if errors.As(err, &fault) && fault.Owner == g.Owner {
		return err
	}

	return &Fault{Owner: g.Owner, Err: err}
}

// Name returns the group's name for error texts: the Title or, if it is empty, the ID without the
// prefix of an internal ID, such as "// ".
func (g GroupConfig) Name() string {
	if g.Title != "" {
		return g.Title
	}

	withoutSlashes := strings.TrimLeft(g.ID, "/")
	return strings.TrimPrefix(withoutSlashes, " ")
}

// JoinError adds the prefix "joining group NAME" to an error that lacks it.
func (g GroupConfig) JoinError(err error) error {
	prefix := "joining group " + g.Name()
	if strings.HasPrefix(err.Error(), prefix) {
		return err
	}

	return fmt.Errorf("%s: %w", prefix, err)
}

// World converts group ranks to world ranks.
func (g GroupConfig) World(groupRanks []int) []int {
	worldRanks := make([]int, len(groupRanks))
	for i, rank := range groupRanks {
		worldRanks[i] = g.Ranks[rank]
	}

	return worldRanks
}

// MachinesOf maps world ranks to their host names. It omits unknown names, and returns nil if no
// name is known.
func (g GroupConfig) MachinesOf(worldRanks []int) map[int]string {
	var machines map[int]string
	for _, rank := range worldRanks {
		name := g.machineOf(rank)
		if name == "" {
			continue
		}

		if machines == nil {
			machines = map[int]string{}
		}

		machines[rank] = name
	}

	return machines
}

// machineOf returns the host name of a world rank, or "" if it is not known.
func (g GroupConfig) machineOf(worldRank int) string {
	groupRank := slices.Index(g.Ranks, worldRank)
	if groupRank < 0 || groupRank >= len(g.Machines) {
		return ""
	}

	return g.Machines[groupRank]
}

// Mismatch returns the error for a call that differs from the calls of other group ranks. number is
// the call's number in the group.
func (g GroupConfig) Mismatch(number uint64, call *Call, groupRanks ...int) *MismatchError {
	return &MismatchError{
		Number: number, Call: call, Others: g.World(groupRanks), Group: g.Name(), Members: g.Ranks,
	}
}

// Limit is a timeout that can be changed concurrently. A change affects only later waits.
type Limit struct{ duration atomic.Int64 }

// NewLimit returns a Limit with the value d.
func NewLimit(d time.Duration) *Limit {
	l := &Limit{}
	l.Set(d)
	return l
}

// Get returns the value.
func (l *Limit) Get() time.Duration { return time.Duration(l.duration.Load()) }

// Set changes the value.
func (l *Limit) Set(d time.Duration) { l.duration.Store(int64(d)) }
