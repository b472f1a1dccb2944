package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// GroupConfig describes a group of ranks to connect. A world rank numbers a process among all
// processes, and a group rank numbers it in a group. If Ranks is [4, 6], for example, the world
// rank 6 has the group rank 1.
type GroupConfig struct {
	ID    string // the same on all ranks
	Title string // replaces ID in error texts, unless empty
	Ranks []int  // world ranks, by group rank
	Rank  int    // group rank of this rank
	// Check makes ranks compare the Digest of every call before they use the call's result.
	Check bool
	// Strict makes the group fail with a MessageError if a Send and its Recv are called after
	// different numbers of collectives. It is the same on every rank.
	Strict  bool
	Formula Formula // order in which reductions combine elements
	// Timeout limits each wait for a peer, unless the wait has another deadline. The default is
	// Config.Timeout.
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

// Fault wraps an error that made the group fail in a Fault with the group's Owner. It returns err
// unchanged if the group has no Owner, and if err is nil or already has this Owner.
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

// Name returns the group's name for error texts: the Title, if there is one, or the ID without
// leading slashes. For example, the ID "// a" gives "a".
func (g GroupConfig) Name() string {
	if g.Title != "" {
		return g.Title
	}

	withoutSlashes := strings.TrimLeft(g.ID, "/")
	return strings.TrimPrefix(withoutSlashes, " ")
}

// JoinError adds the prefix "joining group NAME" to an error that does not have it yet.
func (g GroupConfig) JoinError(err error) error {
	prefix := "joining group " + g.Name()
	if strings.HasPrefix(err.Error(), prefix) {
		return err
	}

	return fmt.Errorf("%s: %w", prefix, err)
}

// World converts group ranks to world ranks.
func (g GroupConfig) World(ranks []int) []int {
	world := make([]int, len(ranks))
	for i, rank := range ranks {
		world[i] = g.Ranks[rank]
	}

	return world
}

// MachinesOf maps world ranks to their host names. It omits unknown names, and returns nil if no
// name is known.
func (g GroupConfig) MachinesOf(world []int) map[int]string {
	var machines map[int]string
	for _, rank := range world {
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
func (g GroupConfig) machineOf(world int) string {
	groupRank := slices.Index(g.Ranks, world)
	hasEntry := groupRank >= 0 && groupRank < len(g.Machines) // Machines may be nil
	if !hasEntry {
		return ""
	}

	return g.Machines[groupRank]
}

// Mismatch returns the error for a call of this rank that differs from the calls of the group ranks
// in others. number is the number of this rank's call in the group.
func (g GroupConfig) Mismatch(number uint64, call *Call, others ...int) *MismatchError {
	return &MismatchError{
		Number: number, Call: call, Others: g.World(others), Group: g.Name(), Members: g.Ranks,
	}
}

// Lane is an independent channel of a communicator for exchanges of small payloads.
type Lane int

// The lanes of a communicator.
const (
	LaneControl    Lane = iota // for exchanges that a caller waits for
	LaneBackground             // for exchanges that no caller waits for
	LaneCalls                  // for data that ranks compare for each call, in call order
	// LaneFault is for causes of failures. An exchange on LaneFault makes the communicator fail, which
	// ends all waits on every rank with ErrFault. The exchange does not wait for late or lost ranks.
	LaneFault
	Lanes // number of lanes
)

// Communicator connects the ranks of a group. All ranks must make collective calls in the same
// order. After the first error, a communicator has failed, and supports only Decide, Departed,
// Close, and exchanges on LaneFault.
type Communicator interface {
	// Exchange sends a payload of at most MaxPayload bytes to every rank, and returns all payloads by
	// group rank. Each lane allows one call at a time.
	//
	// On LaneFault, the payloads of late or lost ranks are nil. On other lanes, Exchange returns a
	// TimeoutError or RankLostError for such ranks, and ErrFault if a peer has failed. An error on
	// LaneControl, even a canceled context, makes the communicator fail. An error on LaneBackground
	// makes only that lane unusable.
	Exchange(ctx context.Context, lane Lane, payload []byte) ([][]byte, error)
	Decisions
	// Register is collective, and gives the group's ranks access to a segment of each rank. All ranks
	// pass the same key. A group has at most one open window with a key. If the segments differ in
	// size, Register fails on all ranks, and the key can be used again. After an error, this rank has
	// no window. During a capture, Register returns ErrCapturing.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Offer prepares a valid call, whose windows must contain its buffers. It has no side effects and
	// does not wait.
	Offer(call Call) Offer
	// Launch queues a prepared call, or runs it immediately and returns its error. The error of a
	// queued call is returned by Stream.Synchronize.
	Launch(stream Stream, plan Plan) error
	// Launched returns the number of calls on each path, including calls in replays of graphs.
	Launched() [Paths]uint64
	// SetCheck changes GroupConfig.Check for later calls.
	SetCheck(on bool)
	// Failed returns a channel that is closed when the communicator fails.
	Failed() <-chan struct{}
	// Cause returns the first error that this rank detected, as a Fault with the group's owner, or
	// nil.
	Cause() error
	// CheckPeers makes the communicator fail if a peer has failed or is lost. It does not wait.
	CheckPeers()
	// Abort makes the communicator fail on all ranks. Waits on this rank end with cause, or with
	// ErrAborted if cause is nil. Waits on other ranks end with ErrFault.
	Abort(cause error)
	// Close cancels this rank's queued collectives, waits for the running one, and deregisters all
	// windows. It leaves the group without waiting for other ranks.
	Close() error
}

// Decisions lets the ranks of a failed group agree on one cause of the failure. Its methods do not
// wait.
type Decisions interface {
	// Decide proposes a cause of at most MaxPayload bytes, and returns the decision: the first
	// proposal of any rank. With a nil proposal, it returns the decision so far, or nil. If the
	// decision cannot be stored or read, it returns proposal.
	Decide(proposal []byte) (decision []byte)
	// Departed returns the world ranks that will send no more messages to the group: those that
	// exited or disconnected, and those that called Close or Abort.
	Departed() (lost, left []int)
}

// MaxPayload is the maximum size of a payload in bytes.
const MaxPayload = 1 << 20

// SegmentKey identifies segments that the ranks register together.
type SegmentKey struct {
	Pool    uint64 // the same on all ranks
	Ordinal uint32 // number in the pool, never reused
}

// Window is the registration of a segment with a communicator.
type Window interface {
	// Deregister removes this rank's registration. No queued work or live graph may use it. After
	// Communicator.Close, Deregister has no effect.
	Deregister() error
}
