package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// GroupConfig describes a group of ranks to connect.
//
// A rank has a number among all processes, its world rank, and a number in each group, its group
// rank. For example, if Ranks is [4, 6], the world rank 6 has the group rank 1.
type GroupConfig struct {
	ID    string // the same on all ranks
	Title string // replaces ID in error texts, unless it is empty
	Ranks []int  // world ranks, by group rank
	Rank  int    // group rank of this rank
	// Check makes ranks compare every call, by its Digest, before they use the result.
	Check bool
	// Strict makes the group fail with a MessageError if a message is sent and received after
	// different numbers of collectives. It is the same on every rank.
	Strict  bool
	Formula Formula
	// Timeout limits each wait for a peer that has no other deadline. If it is nil, Config.Timeout
	// limits these waits.
	Timeout *Limit
	// Machines holds the ranks' host names, by group rank. It is nil if all ranks are on one machine.
	// A name is "" if it is not known.
	Machines []string
	// Owner, if not nil, identifies the group in its Faults.
	Owner any
}

// WithTimeout returns a copy of g. If g.Timeout is nil, the copy has a new Limit of fallback.
func (g GroupConfig) WithTimeout(fallback time.Duration) GroupConfig {
	if g.Timeout == nil {
		g.Timeout = NewLimit(fallback)
	}

	return g
}

// Fault wraps err, which made the group fail, in a Fault with the group's Owner. If there is no
// owner, or if err is nil or already wrapped, it returns err itself.
func (g GroupConfig) Fault(err error) error {
	if err == nil || g.Owner == nil {
		return err
	}

	var f *Fault
	isWrapped := errors.As(err, &f) && f.Owner == g.Owner
	if isWrapped {
		return err
	}

	return &Fault{Owner: g.Owner, Err: err}
}

// Name returns the group's name for error texts. Without a Title, it is the ID without leading
// slashes and without a space after them: "a" for the ID "// a".
func (g GroupConfig) Name() string {
	if g.Title != "" {
		return g.Title
	}

	withoutSlashes := strings.TrimLeft(g.ID, "/")
	return strings.TrimPrefix(withoutSlashes, " ")
}

// JoinError adds the prefix "joining group NAME" to an error, unless its text has the prefix.
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

// MachinesOf returns the known host names of world ranks, by world rank. It returns nil if none is
// known or all ranks are on one machine.
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
	rank := slices.Index(g.Ranks, world)
	isMember := rank >= 0
	if !isMember || rank >= len(g.Machines) { // Machines may be nil
		return ""
	}

	return g.Machines[rank]
}

// Mismatch returns the error for a call of this rank that differs from the calls of other ranks.
// number is the call's number in the group. others are group ranks.
func (g GroupConfig) Mismatch(number uint64, call *Call, others ...int) *MismatchError {
	return &MismatchError{
		Number: number, Call: call, Others: g.World(others), Group: g.Name(), Members: g.Ranks,
	}
}

// Lane is one of a communicator's channels for exchanges of small payloads between ranks. Exchanges
// on different lanes do not wait for each other.
type Lane int

// The lanes of a communicator.
const (
	LaneControl    Lane = iota // for exchanges that a caller waits for
	LaneBackground             // for other exchanges
	LaneCalls                  // for data that ranks compare for each call, in call order
	// LaneFault is for causes of failures. An exchange on it makes the communicator fail, so that
	// all waits on every rank end with ErrFault. It does not wait for late or lost ranks.
	LaneFault
	Lanes // number of lanes
)

// Communicator connects the ranks of a group, which must make its collective calls in the same
// order. After its first error, the communicator has failed: it supports only Decide, Departed,
// Close, and exchanges on LaneFault.
type Communicator interface {
	// Exchange sends a payload of at most MaxPayload bytes to every rank, and returns the payloads of
	// all ranks, by group rank. Each lane allows one call at a time.
	//
	// On LaneFault, the entries of late or lost ranks are nil. On other lanes, Exchange returns a
	// TimeoutError or a RankLostError instead, or ErrFault if a peer has failed. On LaneControl, any
	// error, even a canceled context, makes the communicator fail. On LaneBackground, an error makes
	// only that lane unusable.
	Exchange(ctx context.Context, lane Lane, payload []byte) ([][]byte, error)
	Decisions
	// Register makes a window, which gives the group's ranks access to a segment (a block of memory)
	// of each rank. It is collective. All ranks pass the same key, which no other open window of the
	// group has. If the sizes of the segments differ, all ranks return an error, and the key can be
	// used again. During a capture, Register returns ErrCapturing. After an error, this rank has no
	// window.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Offer prepares a call, without waits or side effects. The call must be valid, and its windows
	// must contain its buffers.
	Offer(call Call) Offer
	// Launch queues a prepared call. If the call runs immediately, Launch returns its error.
	// Otherwise, Stream.Synchronize returns the error.
	Launch(stream Stream, plan Plan) error
	// Launched returns the number of calls on each path, including calls in replays of graphs.
	Launched() [Paths]uint64
	// SetCheck changes GroupConfig.Check for later calls.
	SetCheck(on bool)
	// Failed returns a channel that is closed when the communicator fails.
	Failed() <-chan struct{}
	// Cause returns the first error that this rank detected, as a Fault with the group's owner. It
	// returns nil if there was no error.
	Cause() error
	// CheckPeers makes the communicator fail if a peer has failed or is lost. It does not wait.
	CheckPeers()
	// Abort makes the communicator fail on all ranks. Waits on this rank end with cause, or with
	// ErrAborted if cause is nil. Waits on other ranks end with ErrFault.
	Abort(cause error)
	// Close cancels this rank's queued collectives, and waits for the running one. It then
	// deregisters all windows, and leaves the group without waiting for other ranks.
	Close() error
}

// Decisions lets the ranks of a failed group agree on one cause of the failure.
type Decisions interface {
	// Decide proposes a cause of at most MaxPayload bytes, and returns the decision: the first
	// proposal of any rank. It does not wait. With a nil proposal, it proposes nothing, and returns
	// nil if there is no decision yet. If the decision cannot be stored or read, it returns proposal.
	Decide(proposal []byte) (decision []byte)
	// Departed returns the world ranks that will send no more messages to the group: lost ranks
	// have exited or disconnected, and left ranks have called Close or Abort. It does not wait.
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
	// Deregister removes this rank's registration. No queued work and no live graph may use the
	// window. After Communicator.Close, Deregister has no effect.
	Deregister() error
}
