// Package control compares the calls of a group's ranks and detects lost ranks. It serves backends
// that transfer data with a library such as NCCL. Package shm implements Plane on one machine, and
// package tcp on several machines.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane connects this rank to its peers, the other ranks of a group. Methods are safe for
// concurrent use unless noted.
type Plane interface {
	// Exchange is like driver.Communicator.Exchange.
	Exchange(ctx context.Context, lane driver.Lane, payload []byte) ([][]byte, error)
	driver.Decisions
	driver.Values
	driver.Inspector
	Collectives
	Faults
	// Close ends this rank's waits, notifies the peers, and leaves the group.
	Close() error
}

// Collectives are the methods of a Plane for collectives on GPUs. A ticket is the number of a
// collective, from 1. Each rank calls Submit and Compare (if calls are checked), launches the
// collective, and calls Await.
type Collectives interface {
	// Submit announces this rank's next collective to the peers and returns its ticket. Calls must be
	// serialized.
	Submit() uint64
	// TrySubmit is like Submit, but submits nothing and returns false if the plane has failed, a peer
	// has failed, or a peer has left without submitting the next ticket.
	TrySubmit() (ticket uint64, ok bool)
	// Compare exchanges a hash of the call with all peers. If the hashes differ, every rank gets a
	// driver.MismatchError with the ticket as its Number. An error makes the plane fail. Calls must be
	// serialized.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true. It returns a TimeoutError if a rank does not submit
	// w.Ticket within the group's timeout. After all ranks have submitted it, only ctx bounds the
	// wait.
	//
	// If a peer fails before it submits the ticket, Await returns at once. If a peer fails
	// afterwards, Await returns after Grace.
	//
	// If ctx ends first, Await returns its cause and the plane stays open. Any other error makes the
	// plane fail.
	Await(ctx context.Context, w Wait) error
	// Diagnose returns the error that Await would return now if it had begun at since, or nil. It
	// ignores failures of peers that have submitted the ticket, and never makes the plane fail.
	Diagnose(w Wait, since time.Time) error
	// Withdraw revokes this rank's tickets, except those that all peers are known to have submitted,
	// and reports whether it revoked any. A peer that submits a revoked ticket later gets an error
	// instead of waiting forever. Only Close may be called afterwards. Withdraw waits up to 3 s for a
	// peer whose process is stopped.
	Withdraw() bool
}

// Faults are the methods of a Plane for failures. A plane fails at the first fault that its rank
// observes or causes. A failed plane supports only Decide, Departed and Exchange on
// driver.LaneFault.
type Faults interface {
	// Fail makes the plane fail with err if it is open. The waits of peers then end with ErrFault.
	// Fail returns err, wrapped in a driver.Fault.
	Fail(err error) error
	// Abort makes the plane fail on all ranks. On this rank, Cause then returns cause, or
	// driver.ErrAborted if cause is nil.
	Abort(cause error)
	// Failed returns a channel that is closed when the plane fails.
	Failed() <-chan struct{}
	// Cause returns the error with which the plane failed, or nil.
	Cause() error
	// PeerFailed reports whether a peer has failed or is lost. It also returns true after Close.
	PeerFailed() bool
	// PeerFault returns ErrClosed after Close, a RankLostError about lost peers, a PeerError about
	// failed ones, or a DeadlockError if peers have only left.
	PeerFault(callText string) error
}

// Wait describes a wait for work of this rank.
type Wait struct {
	// Ticket is the last collective on which the work depends, or 0 if the work needs no other rank.
	Ticket    uint64
	Operation driver.Operation // of the collective
	// CallText returns a text such as "AllReduce 12 of group world".
	CallText func() string
	// Done reports whether the work has completed. The plane serializes its calls. For Diagnose, Done
	// may be nil.
	Done func() bool
	// CountsText returns the text for TimeoutError.Counts. It may be nil.
	CountsText func() string
	// FindFault returns an error that replaces an ErrFault, or nil. FindFault may be nil.
	FindFault func() error
}

// IsDone reports whether the work is known to have completed.
func (w *Wait) IsDone() bool { return w.Done != nil && w.Done() }

// AddDetails adds CountsText to a TimeoutError, and replaces an ErrFault by the error of FindFault.
func (w *Wait) AddDetails(err error) error {
	timeout, isTimeout := errors.AsType[*driver.TimeoutError](err)
	if isTimeout && w.CountsText != nil {
		// Other goroutines may read the error of a failed plane, so change a copy.
		withCounts := *timeout
		withCounts.Counts = w.CountsText()
		return &withCounts
	}

	isFault := errors.Is(err, driver.ErrFault)
	if isFault && w.FindFault != nil {
		if betterErr := w.FindFault(); betterErr != nil {
			return betterErr
		}
	}

	return err
}

// Announcements is an optional interface of a Plane on one machine. Ranks publish digests (hashes)
// of their latest collectives, so that others can compare calls without waiting.
type Announcements interface {
	// AllSubmitted reports whether all ranks have submitted a ticket and none has withdrawn it.
	AllSubmitted(ticket uint64) bool
	// Announce publishes the digest of this rank's call.
	Announce(ticket, digest uint64)
	// DifferingRanks lists the group ranks that have announced another digest.
	DifferingRanks(ticket, digest uint64) []int
}

// Notifier is an optional interface of a Plane whose peers learn of faults with a delay.
type Notifier interface {
	// WaitForAcknowledgements waits for a limited time until the other ranks know of this rank's
	// fault.
	WaitForAcknowledgements()
	// CanSucceed reports whether no other rank has reported a fault and every lost rank had submitted
	// the ticket. Otherwise, a collective that has ended on this rank may be incomplete.
	CanSucceed(ticket uint64) bool
}

// Grace bounds how long work that all ranks have submitted may continue after a rank has failed.
const Grace = 100 * time.Millisecond

// GraceTimer measures the time since a peer's failure. It is not safe for concurrent use.
type GraceTimer struct{ since time.Time }

// Elapsed returns the time since the first call with failed set, or -1 if failed is false.
func (t *GraceTimer) Elapsed(failed bool) time.Duration {
	if !failed {
		return -1
	}

	if t.since.IsZero() {
		t.since = time.Now()
	}

	return time.Since(t.since)
}

// Expired reports whether Elapsed has reached Grace.
func (t *GraceTimer) Expired(failed bool) bool { return t.Elapsed(failed) >= Grace }

// Reason classifies a rank's failure for the other ranks. Processes exchange the numbers.
type Reason uint32

// The reasons of a failure.
const (
	NotFailed       Reason = iota // the rank has not failed
	FailedItself                  // the rank has observed or caused a fault
	Aborted                       // the rank's program has aborted the group
	FailedAfterPeer               // the rank failed only because another had failed
)

// ReasonOf classifies the error with which a rank fails.
func ReasonOf(err error) Reason {
	switch {
	case err == nil:
		return NotFailed
	case errors.As(err, new(*driver.PeerError)):
		return FailedAfterPeer
	case errors.Is(err, driver.ErrAborted):
		return Aborted
	default:
		return FailedItself
	}
}
