package driver

import (
	"context"
	"errors"
	"strings"
)

// GroupConfig names a group to connect.
type GroupConfig struct {
	// ID names the group: the same on every rank of it, and never used for another one.
	ID string
	// Ranks lists the world ranks of the group in group order.
	Ranks []int
	// Rank is this rank's place in Ranks.
	Rank int
	// Check makes the communicator compare every call's Digest across ranks before the call's
	// result is used. It can be changed later by SetCheck.
	Check bool
	// Strict numbers messages together with collectives. A message that is sent between other
	// collectives than it is received between fails the group with a MessageError, and where calls
	// are compared each collective also compares how many messages the ranks have sent and
	// received. It is the same on every rank.
	Strict bool
	// Formula selects the order of additions in every reduction of the group, on every path.
	Formula Formula
	// Owner identifies the group in its Faults. If it is nil, errors are not wrapped.
	Owner any
}

// Fault wraps a fault of the group in a Fault that carries its owner, unless it has one already.
func (g GroupConfig) Fault(err error) error {
	var f *Fault
	if err == nil || g.Owner == nil || errors.As(err, &f) && f.Owner == g.Owner {
		return err
	}
	return &Fault{Owner: g.Owner, Err: err}
}

// Name returns the group's id as people know it, without the slashes and the blank in front, which
// only keep groups that were split and groups that were joined apart from each other.
func (g GroupConfig) Name() string { return strings.TrimPrefix(strings.TrimLeft(g.ID, "/"), " ") }

// World returns the world ranks of ranks of the group.
func (g GroupConfig) World(ranks []int) []int {
	world := make([]int, len(ranks))
	for i, r := range ranks {
		world[i] = g.Ranks[r]
	}
	return world
}

// Mismatch says that the calls of other ranks of the group differ from this rank's; others are
// ranks of the group.
func (g GroupConfig) Mismatch(number uint64, call *Call, others ...int) *MismatchError {
	return &MismatchError{
		Number: number, Call: call, Others: g.World(others), Group: g.Name(), Members: g.Ranks,
	}
}

// Lane is a channel for small messages of a communicator. Lanes are independent of each other
// and of the collectives that streams run.
type Lane int

// The lanes of a communicator.
const (
	// LaneControl carries agreements that the caller waits for.
	LaneControl Lane = iota
	// LaneBackground carries agreements that no call waits for.
	LaneBackground
	// LaneCalls carries what calls compare besides their digests, in the order of calls.
	LaneCalls
	// LaneFault carries the reports by which ranks find out why they failed. Using it marks the
	// communicator as failed: every wait of every rank on it ends with ErrFault. Absent ranks do not
	// block it.
	LaneFault
	// Lanes is their number.
	Lanes
)

// Communicator connects the ranks of a group. States: open, then failed (after the first fault;
// only exchanges on LaneFault still work), then closed. Faults are final: a new group is the way
// on.
//
// Collective calls of one communicator must be made in the same order on every rank.
type Communicator interface {
	// Exchange sends payload to every rank and returns everybody's, by group rank. On LaneFault
	// the entries of ranks that did not come in time, or are lost, are nil; on other lanes that
	// is a TimeoutError or a RankLostError, and ErrFault when a peer has failed meanwhile. An
	// exchange on LaneControl that does not succeed fails the communicator, even when its context
	// was cancelled; one on LaneBackground only ends the use of that lane.
	// Payloads are at most MaxPayload bytes. One call at a time on each lane.
	Exchange(ctx context.Context, lane Lane, payload []byte) ([][]byte, error)
	// Register makes a window over a segment. It is collective. key names the segment: the same
	// on every rank.
	//
	// Preconditions: all ranks have agreed on the key.
	// Postconditions: on an error this rank holds no window. Sizes that differ are an error on all
	// ranks, and the key is free again. A key that is registered already is an error that harms
	// nothing. A stream that captures gives ErrCapturing before anything else happens.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Offer resolves a call: it gives what each path would make of it. It is cheap, waits for
	// nothing, and leaves nothing to take back.
	//
	// Preconditions: Call.Validate finds nothing, and the windows that the call names hold its
	// buffers. A backend does not check that again.
	Offer(call Call) Offer
	// Launch queues a prepared collective on a stream. The returned error is about this call if
	// the work was done at once; else it comes with Synchronize, but see AdoptedStream.
	Launch(stream Stream, plan Plan) error
	// Launched counts the calls that were launched, by their path; replays of graphs count.
	Launched() [Paths]uint64
	// SetCheck switches the comparison of calls on or off, in the order of calls.
	SetCheck(on bool)
	// Failed is closed when the communicator fails; Cause then says why on this rank.
	Failed() <-chan struct{}
	// Cause returns the fault that this rank saw first, or nil. It is a Fault with the owner of the
	// group, as is the error with which the fault fails a stream.
	Cause() error
	// CheckPeers fails the communicator if a peer has failed or is lost, which a rank without a call
	// under way does not notice otherwise. It does not wait.
	CheckPeers()
	// Abort fails the communicator for all its ranks. Waits on this rank end with the given cause
	// (nil means ErrAborted), those of others with ErrFault.
	Abort(cause error)
	// Close ends the collectives of this rank, waits for the one that runs, and leaves the group.
	// Windows that are still registered end with it; to deregister one then does nothing. It waits
	// for no other rank.
	Close() error
}

// MaxPayload is the largest payload of an exchange in bytes.
const MaxPayload = 1 << 20

// SegmentKey names a segment across ranks.
type SegmentKey struct {
	// Pool is the pool's number, agreed by its domain.
	Pool uint64
	// Ordinal names the segment in the pool, which never gives it to another.
	Ordinal uint32
}

// Window is one segment registered with one communicator.
type Window interface {
	// Deregister takes the registration back on this rank.
	//
	// Preconditions: no queued work and no live graph uses the window.
	Deregister() error
}
