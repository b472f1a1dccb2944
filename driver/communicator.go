package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// GroupConfig describes a group to connect.
type GroupConfig struct {
	// ID identifies the group. All its ranks use the same ID, and no other group uses it.
	ID string
	// Title replaces ID in error texts, unless it is empty.
	Title string
	// Ranks lists the world ranks of the group in group order.
	Ranks []int
	// Rank is this rank's index in Ranks.
	Rank int
	// Check makes the communicator compare every call's Digest across ranks before the call's
	// result is used. SetCheck can change this later.
	Check bool
	// Strict requires each message to be sent and received after the same number of collectives;
	// otherwise the group fails with a MessageError. If calls are compared, each collective also
	// compares how many messages the ranks have sent and received. Strict must be the same on every
	// rank.
	Strict bool
	// Formula selects the order of additions in every reduction of the group, on every path.
	Formula Formula
	// Timeout bounds any wait for a peer that has no deadline of its own. If it is nil,
	// Config.Timeout applies.
	Timeout *Limit
	// Machines holds the host name of each rank, or "" if it is unknown, in group order, for use in
	// error texts. It is nil if all ranks share a machine.
	Machines []string
	// Owner identifies the group in its Faults. If it is nil, errors are not wrapped.
	Owner any
}

// WithTimeout returns g, with Timeout set to a new Limit of fallback if it was nil.
func (g GroupConfig) WithTimeout(fallback time.Duration) GroupConfig {
	if g.Timeout == nil {
		g.Timeout = NewLimit(fallback)
	}
	return g
}

// Fault wraps err, a fault of the group, in a Fault with the group's owner. It returns err itself
// if err is nil or already has this owner.
func (g GroupConfig) Fault(err error) error {
	var f *Fault
	if err == nil || g.Owner == nil || errors.As(err, &f) && f.Owner == g.Owner {
		return err
	}
	return &Fault{Owner: g.Owner, Err: err}
}

// Name returns the group's ID for error texts. It strips leading slashes and a leading space, which
// only keep the IDs of groups made by Split distinct from those of groups made by Join.
func (g GroupConfig) Name() string {
	if g.Title != "" {
		return g.Title
	}
	return strings.TrimPrefix(strings.TrimLeft(g.ID, "/"), " ")
}

// World converts ranks of the group to world ranks.
func (g GroupConfig) World(ranks []int) []int {
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = g.Ranks[r]
	}
	return world
}

// MachinesOf returns the known host names of the given world ranks, keyed by world rank. It returns
// nil if the ranks of the group share a machine.
func (g GroupConfig) MachinesOf(world []int) map[int]string {
	var machines map[int]string
	for _, rank := range world {
		i := slices.Index(g.Ranks, rank)
		if i < 0 || i >= len(g.Machines) || g.Machines[i] == "" {
			continue
		}
		if machines == nil {
			machines = map[int]string{}
		}
		machines[rank] = g.Machines[i]
	}
	return machines
}

// Mismatch returns the error for a call that differs between ranks. others lists the group ranks
// whose calls differ from this rank's.
func (g GroupConfig) Mismatch(number uint64, call *Call, others ...int) *MismatchError {
	return &MismatchError{
		Number: number, Call: call, Others: g.World(others), Group: g.Name(), Members: g.Ranks,
	}
}

// Lane identifies a communicator's channel for small messages. Lanes are independent of each other
// and of the collectives on streams.
type Lane int

// The lanes of a communicator.
const (
	// LaneControl carries agreements that a caller waits for.
	LaneControl Lane = iota
	// LaneBackground carries agreements that no call waits for.
	LaneBackground
	// LaneCalls carries, in the order of the calls, data that calls compare besides their digests.
	LaneCalls
	// LaneFault carries reports about the cause of a failure. An exchange on it fails the
	// communicator, so that all its waits end with ErrFault on every rank. Absent ranks do not block
	// the exchange.
	LaneFault
	// Lanes is the number of lanes.
	Lanes
)

// Communicator connects the ranks of a group. It is open at first, failed after the first fault,
// and finally closed. A failed communicator supports only exchanges on LaneFault, Decide and
// Departed. It never recovers, so the ranks must connect a new group.
//
// Collective calls of one communicator must be made in the same order on every rank.
type Communicator interface {
	// Exchange sends payload to every rank and returns the payloads of all ranks, by group rank. On
	// LaneFault, the entries of ranks that are late or lost are nil. On other lanes, Exchange
	// returns a TimeoutError for late ranks, a RankLostError for lost ranks, and ErrFault if a peer
	// has failed. A failed exchange on LaneControl fails the communicator, even if its context was
	// cancelled. A failed exchange on LaneBackground only makes that lane unusable. Payloads have
	// at most MaxPayload bytes. There must be only one call at a time on each lane.
	Exchange(ctx context.Context, lane Lane, payload []byte) ([][]byte, error)
	Decisions
	// Register makes a window over a segment. It is collective. key identifies the segment on every
	// rank.
	//
	// Preconditions: all ranks have agreed on the key.
	// Postconditions: if Register fails, this rank has no window. If sizes differ, all ranks return
	// an error and the key can be used again. Registering a key twice returns an error and has no
	// other effect. If a stream is being captured, Register only returns ErrCapturing.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Offer reports which paths can execute a call, and how. It is cheap, does not wait and has no
	// side effects.
	//
	// Preconditions: Call.Validate returns nil, and the windows that the call names contain its
	// buffers. A backend does not check these again.
	Offer(call Call) Offer
	// Launch queues a prepared collective on a stream. If the collective ran before Launch returned,
	// Launch returns its error; otherwise Synchronize does (but see AdoptedStream).
	Launch(stream Stream, plan Plan) error
	// Launched returns the number of launched calls by path, including those replayed by graphs.
	Launched() [Paths]uint64
	// SetCheck enables or disables the comparison of calls. It takes effect in the order of calls.
	SetCheck(on bool)
	// Failed returns a channel that is closed when the communicator fails. Cause then returns why.
	Failed() <-chan struct{}
	// Cause returns the first fault that this rank detected, or nil. The fault is a Fault with the
	// group's owner. If it makes a stream fail, the stream's error has the same owner.
	Cause() error
	// CheckPeers fails the communicator if a peer has failed or is lost, which this rank would
	// otherwise detect only in its next call. CheckPeers does not wait.
	CheckPeers()
	// Abort fails the communicator on all its ranks. Waits on this rank end with the given cause,
	// or ErrAborted if it is nil. Waits on other ranks end with ErrFault.
	Abort(cause error)
	// Close cancels this rank's queued collectives, waits for the running one, and leaves the group.
	// It also deregisters the remaining windows; deregistering one of them again has no effect. Close
	// does not wait for other ranks.
	Close() error
}

// Decisions lets the ranks of a failed group agree on one cause, however late each of them is.
type Decisions interface {
	// Decide proposes a cause for the group's failure, in encoded form, and returns the cause the
	// ranks agreed on. The first proposal of any rank becomes the decision, which never changes and
	// outlives that rank. With a nil proposal, Decide only returns the decision, or nil if there is
	// none. If the decision cannot be stored or read, Decide returns the proposal. A proposal has at
	// most MaxPayload bytes. Decide does not wait for other ranks.
	Decide(proposal []byte) (decision []byte)
	// Departed returns the world ranks from which no more reports will arrive: lost ranks, whose
	// process or connection ended before they left or aborted the group, and ranks that left. It does
	// not wait.
	Departed() (lost, left []int)
}

// MaxPayload is the maximum size of an exchange's payload in bytes.
const MaxPayload = 1 << 20

// SegmentKey identifies a segment on all ranks.
type SegmentKey struct {
	// Pool is the number on which the ranks of the pool's domain have agreed.
	Pool uint64
	// Ordinal is the segment's number in its pool. A pool never reuses a number.
	Ordinal uint32
}

// Window is the registration of a segment with a communicator.
type Window interface {
	// Deregister ends the registration on this rank.
	//
	// Preconditions: no queued work and no live graph uses the window.
	Deregister() error
}
