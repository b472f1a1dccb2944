package driver

import "context"

// Lane is an independent channel for Communicator.Exchange.
type Lane int

// The lanes of a communicator.
const (
	LaneControl    Lane = iota // for exchanges that a caller waits for
	LaneBackground             // for exchanges that no caller waits for
	LaneCalls                  // for data that ranks compare for each call, in call order
	// LaneFault is for the causes of a failure. An exchange on it makes the communicator fail, and
	// does not wait for late or lost ranks. All other waits end with ErrFault on every rank.
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
	// TimeoutError for a late rank, RankLostError for a lost rank, and ErrFault if a peer has
	// failed. An error on LaneControl, even a canceled context, makes the communicator fail. An
	// error on LaneBackground makes only that lane unusable.
	Exchange(ctx context.Context, lane Lane, payload []byte) ([][]byte, error)
	Decisions
	// Register gives the group's ranks access to a segment of each rank. It is collective: all
	// ranks pass the same key, which no open window has. If the segments differ in size, Register
	// fails on all ranks, and the key can be used again. After an error, this rank has no window.
	// During a capture, Register returns ErrCapturing.
	Register(ctx context.Context, key SegmentKey, segment Segment) (Window, error)
	// Offer prepares a call. The call must be valid, and its windows must contain its buffers.
	// Offer has no side effects and does not wait.
	Offer(call Call) Offer
	// Launch queues a prepared call, or runs it immediately and returns its error. Stream.Synchronize
	// returns the error of a queued call.
	Launch(stream Stream, plan Plan) error
	// Launched counts the calls on each path, including calls in replays of graphs.
	Launched() [Paths]uint64
	// SetCheck changes GroupConfig.Check for later calls.
	SetCheck(on bool)
	// Failed returns a channel that is closed when the communicator fails.
	Failed() <-chan struct{}
	// Cause returns the first error that this rank detected, or nil. The error is a Fault with
	// GroupConfig.Owner.
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

// Offer prepares one call of a communicator for a path. It is not safe for concurrent use.
type Offer interface {
	// Refusal returns nil if the path supports the call with the group's Formula. Otherwise, it
	// returns an error that matches ErrUnsupported.
	//
	// All ranks must choose the same path without communicating. The result therefore depends only
	// on the operation, type, reduction, count, and alignment of offsets in windows. Except for
	// PathWindow, it also depends on the presence of windows.
	Refusal(path Path) error
	// Take returns a plan for a supported path, and sets Call.Digest. On PathWindow, it returns
	// ErrOutOfRange if a buffer is outside the group's windows. Do not use the Offer after Take.
	Take(path Path, digest uint64) (Plan, error)
}

// Plan is a prepared call of one communicator. It is immutable, and can be launched repeatedly
// until one of the call's windows is deregistered.
type Plan interface {
	// Prepared returns the call, which must not be changed.
	Prepared() *Call
}

// Prepare returns a plan for the path and the digest that are set in call.
func Prepare(c Communicator, call Call) (Plan, error) {
	offer := c.Offer(call)
	if err := offer.Refusal(call.Path); err != nil {
		return nil, err
	}

	return offer.Take(call.Path, call.Digest)
}

// Decisions lets the ranks of a failed group agree on one cause of the failure. Its methods do not
// wait.
type Decisions interface {
	// Decide proposes a cause of at most MaxPayload bytes, and returns the decision: the first
	// proposal of any rank. With a nil proposal, it only reads the decision, and returns nil if
	// there is none yet. If Decide cannot access the decision, it returns proposal.
	Decide(proposal []byte) (decision []byte)
	// Departed returns the world ranks that will send nothing more to the group. Lost ranks have
	// exited or disconnected. Ranks that left have called Close or Abort.
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
	// Deregister removes this rank's registration, which no queued work or live graph may use.
	// After Communicator.Close, it has no effect.
	Deregister() error
}
