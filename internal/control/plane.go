// Package control connects the ranks of a group for everything except the transfer of data. A
// backend that transfers data with a library, such as NCCL, uses a Plane to agree with other ranks,
// compare calls and detect lost ranks. Package shm implements planes on one machine, and package
// tcp implements planes on several machines.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane connects this rank to the other ranks of a group, its peers. For the group's 7th collective
// on GPUs, each rank calls Submit, which returns the ticket 7. It may call Compare to check that
// all ranks make the same call. It then launches the collective and calls Await, which returns a
// TimeoutError if a peer does not submit ticket 7 in time.
//
// A plane fails at the first fault that its rank observes or causes. From then on, only Decide,
// Departed and exchanges on driver.LaneFault work.
//
// Methods are safe for concurrent use unless noted.
type Plane interface {
	// Exchange is like driver.Communicator.Exchange.
	Exchange(ctx context.Context, lane driver.Lane, payload []byte) ([][]byte, error)
	driver.Decisions
	driver.Values
	driver.Inspector
	// Submit announces this rank's next collective to the peers and returns its ticket. Calls must be
	// serialized.
	Submit() uint64
	// TrySubmit is like Submit, but submits nothing and returns false if the plane has failed, a peer
	// has failed, or a peer has left without submitting the next ticket.
	TrySubmit() (ticket uint64, ok bool)
	// Compare waits for the Compare of each peer, and compares the hashes of their calls. If they
	// differ, every rank gets a driver.MismatchError with the ticket as its Number. Timeouts and
	// faults are handled as in Exchange. An error makes the plane fail. Calls must be serialized.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true. Each rank must submit w.Ticket within the device's
	// timeout. When all ranks have submitted it, only ctx bounds the wait.
	//
	// If a peer fails before it submits the ticket, Await returns at once. If the peer fails
	// afterwards, Await continues to wait for Grace, because the work can usually still complete.
	//
	// If ctx is done first, Await returns its cause and the plane stays open. Any other error makes
	// the plane fail: a RankLostError, TimeoutError, DeadlockError or ErrFault of package driver, or
	// the plane's Cause.
	Await(ctx context.Context, w Wait) error
	// Diagnose returns the error with which an Await that began at since would end now, or nil. It
	// returns nil if a peer failed after submitting the ticket. It does not make the plane fail.
	Diagnose(w Wait, since time.Time) error
	// PeerFailed reports whether a peer has failed or is lost, or whether this plane is closed.
	PeerFailed() bool
	// PeerFault explains why PeerFailed returned true. It returns ErrClosed if this plane is closed,
	// and otherwise a RankLostError, PeerError or DeadlockError about peers that were lost, failed or
	// left.
	PeerFault(callText string) error
	// Fail makes the plane fail with err, unless it has already failed. The waits of peers then end
	// with ErrFault. Fail always returns err, as a driver.Fault.
	Fail(err error) error
	// Failed returns a channel that is closed when the plane fails.
	Failed() <-chan struct{}
	// Cause returns the error with which the plane failed, or nil.
	Cause() error
	// Abort makes the plane fail on all ranks. On this rank, Cause then returns cause, or
	// driver.ErrAborted if cause is nil.
	Abort(cause error)
	// Withdraw revokes this rank's tickets, except those that all peers are known to have submitted,
	// and reports whether it has revoked any. A peer that submits a revoked ticket later gets an
	// error instead of waiting forever. After Withdraw, only Close can be called.
	//
	// A plane between machines first asks the peers for their tickets, which takes up to 3 s if a
	// process is stopped. During Withdraw, Submit announces no tickets.
	Withdraw() bool
	// Close ends this rank's waits, notifies the peers, and leaves the group.
	Close() error
}

// Wait describes a wait for work of this rank.
type Wait struct {
	// Ticket is the last collective on which the work depends, or 0 if the work needs no other rank.
	Ticket    uint64
	Operation driver.Operation // of the ticket's collective
	// CallText returns a text such as "AllReduce 12 of group world".
	CallText func() string
	// Done reports whether the work has completed. Calls are serialized. For Diagnose, it may be nil.
	Done func() bool
	// CountsText returns the text for TimeoutError.Counts. It may be nil.
	CountsText func() string
	// FindFault, if not nil, looks for an error that is more precise than ErrFault.
	FindFault func() error
}

// IsDone reports whether the work is known to have completed.
func (w *Wait) IsDone() bool { return w.Done != nil && w.Done() }

// AddDetails adds details to err, the error of a wait. It sets the Counts of a TimeoutError, and
// replaces an ErrFault by any error of FindFault.
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

// FetchNoter is an optional interface of a Plane that mentions fetches in errors. In a fetch, a
// rank asks another to share its memory.
type FetchNoter interface {
	// NoteFetch announces a fetch from a group rank, until end is called. Meanwhile, errors of ranks
	// that wait for this rank name both ranks.
	NoteFetch(rank int) (end func())
}
