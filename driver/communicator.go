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
	// Check makes the communicator compare the Digest of every call across ranks before the result
	// of the call is used. SetCheck can change this later.
	Check bool
	// Strict makes the group fail with a MessageError if a message is not sent and received after
	// the same number of collectives. If calls are compared, the ranks also compare, at each
	// collective, how many messages they have sent and received. Strict must be the same on every
	// rank.
	Strict bool
	// Formula selects the order of additions in every reduction of the group, on every path.
	Formula Formula
	// Timeout bounds each wait for a peer that has no other deadline. If it is nil, Config.Timeout
	// applies.
	Timeout *Limit
	// Machines holds the host name of each rank in group order, for error texts. A name is "" if it
	// is unknown. Machines is nil if all ranks share a machine.
	Machines []string
	// Owner identifies the group in its Faults. If it is nil, errors are not wrapped.
	Owner any
}

// WithTimeout returns a copy of g. If g.Timeout is nil, the copy's Timeout is a new Limit of
// length fallback.
func (g GroupConfig) WithTimeout(fallback time.Duration) GroupConfig {
	if g.Timeout == nil {
		g.Timeout = NewLimit(fallback)
	}
	return g
}

// Fault wraps err, which made the group fail, in a Fault with the group's Owner. It returns err
// itself if err is nil or already has this owner.
func (g GroupConfig) Fault(err error) error {
	var f *Fault
	if err == nil || g.Owner == nil || errors.As(err, &f) && f.Owner == g.Owner {
		return err
	}
	return &Fault{Owner: g.Owner, Err: err}
}

// Name returns the group's ID for error texts, without the leading slashes and space, which only
// keep IDs made by Split distinct from those made by Join.
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

// MachinesOf maps the given world ranks to their host names, leaving out unknown names. It
// returns nil if the ranks of the group share a machine.
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
// whose calls differ from the call of this rank.
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
	// LaneControl carries agreements that a caller is waiting for.
	LaneControl Lane = iota
	// LaneBackground carries agreements that no caller is waiting for.
	LaneBackground
	// LaneCalls carries the data, other than digests, that ranks compare for each call, in call
	// order.
	LaneCalls
	// LaneFault carries reports about the cause of a failure. An exchange on this lane makes the
	// communicator fail, so that all its waits end with ErrFault on every rank. The exchange does
	// not wait for absent ranks.
	LaneFault
	// Lanes is the number of lanes.
	Lanes
)

// Communicator connects the ranks of a group. It fails at the first fault and never recovers, so
// the ranks must then connect a new group. A failed communicator supports only Decide, Departed,
// exchanges on LaneFault, and Close.
//
// The ranks must make the collective calls of a communicator in the same order.
type Communicator interface {
	// Exchange sends payload, of at most MaxPayload bytes, to every rank and returns the payloads
	// of all ranks, by group rank. There must be only one call at a time on each lane.
	//
	// On LaneFault, the entries of ranks that are late or lost are nil. On the other lanes,
	// Exchange returns a TimeoutError if ranks are late, a RankLostError if ranks are lost, and
	// ErrFault if a peer has failed. If an exchange on LaneControl fails, even because its context
	// was cancelled, the communicator fails. If an exchange on LaneBackground fails, only that lane
	// becomes unusable.
	Exchange(ctx context.Context, lane Lane, payload []byte) ([][]byte, error)
	Decisions
	// Register makes a window over a segment. It is collective. key identifies the segment on every
	// rank.
	//
	// Preconditions: all ranks have agreed on the key.
	//
	// Postconditions: if Register fails, this rank has no window. If sizes differ between ranks,
	// all ranks return an error and the key can be used again. Registering a key twice returns an
	// error and has no other effect. While a stream is being captured, Register only returns
	// ErrCapturing.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Offer reports which paths can execute a call, and how. It is cheap, does not wait and has no
	// side effects.
	//
	// Preconditions: Call.Validate returns nil, and the windows that the call names contain its
	// buffers. A backend does not check these again.
	Offer(call Call) Offer
	// Launch queues a prepared collective on a stream. If the collective runs before Launch
	// returns, Launch returns its error. If it runs later, Stream.Synchronize returns its error
	// (but see AdoptedStream).
	Launch(stream Stream, plan Plan) error
	// Launched returns the number of launched calls on each path, including calls replayed by
	// graphs.
	Launched() [Paths]uint64
	// SetCheck enables or disables the comparison of calls, starting with the next call.
	SetCheck(on bool)
	// Failed returns a channel that is closed when the communicator fails. Cause then returns why.
	Failed() <-chan struct{}
	// Cause returns the first fault that this rank detected, or nil. The fault is a Fault with the
	// group's owner, and so is the error of a stream that it makes fail.
	Cause() error
	// CheckPeers makes the communicator fail if a peer has failed or is lost, which this rank would
	// otherwise notice only in its next call. CheckPeers does not wait.
	CheckPeers()
	// Abort makes the communicator fail on all ranks. Waits on this rank end with the given cause,
	// or with ErrAborted if cause is nil. Waits on other ranks end with ErrFault.
	Abort(cause error)
	// Close cancels this rank's queued collectives, waits for the running one, and leaves the group
	// without waiting for other ranks. It also deregisters the remaining windows; a later
	// Deregister of one of them has no effect.
	Close() error
}

// Decisions lets the ranks of a failed group agree on one cause of the failure, even if some
// ranks detect the failure much later than others.
type Decisions interface {
	// Decide proposes a cause for the group's failure, encoded in at most MaxPayload bytes, and
	// returns the cause on which the ranks have agreed. The first proposal of any rank becomes the
	// decision, which never changes and outlives that rank. If proposal is nil, Decide returns the
	// decision, or nil if there is none. If the decision cannot be stored or read, Decide returns
	// the proposal. Decide does not wait for other ranks.
	Decide(proposal []byte) (decision []byte)
	// Departed returns the world ranks that will send no more reports. A rank is lost if its
	// process exits or its connection breaks before it has left or aborted the group. Departed does
	// not wait.
	Departed() (lost, left []int)
}

// MaxPayload is the maximum size of an exchange's payload in bytes.
const MaxPayload = 1 << 20

// SegmentKey identifies a segment on all ranks.
type SegmentKey struct {
	// Pool is the pool's number, agreed upon by all ranks in its domain.
	Pool uint64
	// Ordinal is the segment's number in its pool. A pool never reuses a number.
	Ordinal uint32
}

// Window is the registration of a segment with a communicator.
type Window interface {
	// Deregister removes the registration on this rank.
	//
	// Preconditions: no queued work and no live graph uses the window.
	Deregister() error
}
