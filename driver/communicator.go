package driver

import (
	"context"
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
}

// Name is the group's id as people know it: the blank in front of the ids of groups that were
// joined under a name of their own only keeps them apart from ours.
func (g GroupConfig) Name() string { return strings.TrimPrefix(g.ID, " ") }

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
func (g GroupConfig) Mismatch(sequence uint64, call *Call, others ...int) *MismatchError {
	return &MismatchError{
		Sequence: sequence, Call: call, Others: g.World(others), Group: g.Name(), Members: g.Ranks,
	}
}

// Lane is a channel for small messages of a communicator. Lanes are independent of each other
// and of the collectives that streams run.
type Lane int

// The lanes of a communicator.
const (
	// LaneControl carries agreements that the caller waits for.
	LaneControl Lane = iota
	// LaneBackground carries agreements that nobody waits for.
	LaneBackground
	// LaneCalls carries what calls compare besides their digests, in the order of calls.
	LaneCalls
	// LaneFault is where ranks meet to find out why they failed. Using it marks the communicator
	// as failed: every wait of every rank on it ends with ErrFault. Absent ranks do not block it.
	LaneFault
	// Lanes is their number.
	Lanes
)

// Communicator joins the ranks of a group. States: open, then failed (after the first fault; it
// only answers on LaneFault), then closed. Faults are final: a new group is the way on.
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
	// Preconditions: all ranks have agreed on key and size.
	// Postconditions: on an error this rank holds no window. A stream that captures gives
	// ErrCapturing before anything else happens.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Windowed reports whether a call can take the window path when its buffers lie in windows:
	// nil, or an error that matches ErrUnsupported and says why not. It looks at the operation,
	// type, reduction and count, and at how places in windows are aligned: all ranks whose buffers
	// lie at the same places get the same answer.
	Windowed(call *Call) error
	// Direct reports whether a call can take the direct path: nil, or an error that matches
	// ErrUnsupported and says why not. It looks at the operation, type, reduction and count, and at
	// whether SendWindow and RecvWindow are set, without which only messages that fit into the
	// group's exchange memory can: all ranks with alike calls get the same answer.
	Direct(call *Call) error
	// Prepare checks a call and works out all that is the same each time it runs. It returns
	// ErrOutOfRange when a buffer runs past its window.
	Prepare(call Call) (Plan, error)
	// Launch queues a prepared collective on a stream. The returned error is about this call if
	// the work was done at once; else it comes with Synchronize, but see AdoptedStream.
	Launch(stream Stream, plan Plan) error
	// Launched counts the calls that were launched, by their path; replays of graphs count.
	Launched() [Paths]uint64
	// SetCheck switches the comparison of calls on or off, in the order of calls.
	SetCheck(on bool)
	// Failed is closed when the communicator fails; Cause then says why on this rank.
	Failed() <-chan struct{}
	// Cause returns the fault that this rank saw first, or nil.
	Cause() error
	// CheckPeers fails the communicator if a peer has failed or is lost, which a rank that is in no
	// call does not see by itself. It waits for nothing.
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
	// Ordinal names the segment in the pool; Generation tells apart segments that had one name.
	Ordinal, Generation uint32
}

// Window is one segment registered with one communicator.
type Window interface {
	// Deregister takes the registration back on this rank.
	//
	// Preconditions: no queued work and no live graph uses the window.
	Deregister() error
}

// Operation is a collective operation.
type Operation uint8

// The collective operations. Counts are in elements and mean what NCCL's mean: for AllGather
// and ReduceScatter the count of one rank's part, for AllToAll the count for one peer.
const (
	AllReduce Operation = iota
	AllGather
	ReduceScatter
	Broadcast
	Reduce
	AllToAll
	Send
	Recv
	Barrier
	// AllReduceRMSNorm is AllReduce, residual and norm in one call: see Norm. Only GPUs have it.
	AllReduceRMSNorm
	// AllToAllV is AllToAll with a count for each pair of ranks: see Splits.
	AllToAllV
	operations
)

var operationNames = [operations]string{
	"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AllToAll",
	"Send", "Recv", "Barrier", "AllReduceRMSNorm", "AllToAllV",
}

// String returns the operation's name.
func (o Operation) String() string {
	if o < operations {
		return operationNames[o]
	}
	return "Operation(?)"
}

// PointToPoint reports whether the operation involves two ranks only.
func (o Operation) PointToPoint() bool { return o == Send || o == Recv }

// Path is the way a collective runs.
type Path uint8

// The paths.
const (
	// PathPlain works on any memory, by copies through shared staging.
	PathPlain Path = iota
	// PathWindow works on registered memory, which peers read and write directly.
	PathWindow
	// PathDirect runs kernels of our own over peers' memory; only GPUs have it.
	PathDirect
	// Paths is their number.
	Paths
)

// String returns the path's name.
func (p Path) String() string {
	return [...]string{"plain", "window", "direct", "?"}[min(p, Paths)]
}

// Plan is a prepared call of one communicator. It is immutable, may be launched again and again,
// and is valid as long as its windows are.
type Plan interface {
	// Prepared returns the call; it must not be changed.
	Prepared() *Call
}

// Call is one collective call, resolved: addresses, windows and path are chosen.
type Call struct {
	// Operation, DataType and ReduceOp say what to do; ReduceOp matters where one is needed.
	Operation Operation
	DataType  DataType
	ReduceOp  ReduceOp
	// Path says how.
	Path Path
	// Root is the group rank of the root of Broadcast and Reduce, or the peer of Send and Recv; for
	// Recv it may be AnySource.
	Root int
	// Tag sets messages between two ranks apart, from 0 to MaxTag: the k-th Send of a pair with a
	// tag belongs to the k-th Recv with it, in the order of calls of each rank, whatever the
	// streams.
	Tag int
	// Count is in elements, not negative; 0 for AllToAllV.
	Count int64
	// Splits is what AllToAllV has in addition; nil for others.
	Splits *Splits
	// Arrived, if set, is called when a Recv has its message, with the group rank that sent it, on
	// the way of the stream's work: it must return soon and call nothing of the backend.
	Arrived func(source int) `json:"-"`
	// Send and Recv are this rank's buffers; Send may equal Recv (in place, as NCCL defines it).
	Send, Recv uintptr
	// SendWindow and RecvWindow hold the buffers on PathWindow, and on PathDirect if both lie in
	// windows; nil otherwise. SendWindow may hold that of AllToAllV, on some ranks alone: peers
	// then read it there.
	SendWindow, RecvWindow Window `json:"-"`
	// Norm is what AllReduceRMSNorm has in addition; nil for others.
	Norm *Norm `json:"-"`
	// Digest stands for everything that must be alike on all ranks.
	Digest uint64
	// Recorded is where in a capture the call was put, see RecordedAs.
	Recorded Recorded
	// Keep holds what must stay reachable while the call is queued, such as a Go slice.
	Keep any `json:"-"`
}

// Spans returns the number of bytes that the call covers in its send and receive buffers, for a
// group of the given number of ranks. Broadcast and Reduce count both buffers on every rank: over
// windows, peers find the root's buffer by this rank's own offset.
func (c *Call) Spans(ranks int) (send, recv int64) {
	one := c.Count * int64(c.DataType.Size())
	all := one * int64(ranks)
	switch c.Operation {
	case AllGather:
		return one, all
	case ReduceScatter:
		return all, one
	case AllToAll:
		return all, all
	case Send:
		return one, 0
	case Recv:
		return 0, one
	case Barrier:
		return 0, 0
	case AllToAllV:
		if c.Splits == nil {
			return 0, 0
		}
		size := int64(c.DataType.Size())
		send, recv = c.Splits.spans()
		return send * size, recv * size
	default:
		return one, one
	}
}
