// Package control connects the ranks of a group for everything except the transfer of data. A
// backend that leaves data transfer to a library, such as NCCL, uses a Plane to agree with other
// ranks, compare calls and detect lost ranks. Package shm implements planes on one machine, and
// package tcp implements planes on several machines.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane connects the ranks of a group. A rank uses it from the connection to Close.
//
// It fails at the first fault that this rank observes or causes. From then on, only Decide,
// Departed and exchanges on driver.LaneFault work.
//
// Each collective of the group has a number, its ticket. The n-th collective that a rank launches
// has ticket n on every rank. A rank submits a ticket before it launches the collective.
//
// Methods are safe for concurrent use unless noted.
type Plane interface {
	// Exchange is driver.Communicator.Exchange.
	Exchange(ctx context.Context, lane driver.Lane, payload []byte) ([][]byte, error)
	driver.Decisions
	driver.Values
	driver.Inspector
	// Submit announces to all ranks that this rank launches its next collective, and returns the
	// ticket. Calls must be serialized.
	Submit() uint64
	// TrySubmit is like Submit, but returns false and submits nothing in three cases: the plane has
	// failed, a peer (another rank) has failed, or a peer has left without submitting the next
	// ticket.
	TrySubmit() (ticket uint64, ok bool)
	// Compare compares the digests (hashes) of the calls of all ranks. The n-th Compare of a rank
	// waits for the n-th Compare of all others. If digests differ, every rank gets a
	// driver.MismatchError with the ticket as its Number. Timeouts and faults are handled as in
	// Exchange. An error makes the plane fail. Calls must be serialized.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true. Each rank must submit w.Ticket within the device's
	// timeout. When all ranks have submitted it, only ctx bounds the wait.
	//
	// If a peer fails before it submits the ticket, the wait ends at once. If it fails afterwards,
	// the wait continues for Grace, because the work can usually still complete.
	//
	// If ctx is done first, Await returns its cause and the plane stays open. Any other error makes
	// the plane fail. It is a RankLostError, TimeoutError, DeadlockError or ErrFault of package
	// driver, or the plane's Cause.
	Await(ctx context.Context, w Wait) error
	// Diagnose returns the error with which Await would end now, or nil. The plane does not fail.
	// since is the start of the wait. If a peer failed after it had submitted the ticket, Diagnose
	// returns nil.
	Diagnose(w Wait, since time.Time) error
	// PeerFailed reports whether a peer has failed or is lost, or whether this plane is closed.
	PeerFailed() bool
	// PeerFault explains why PeerFailed has returned true, and must not be called before. It returns
	// a RankLostError, PeerError or DeadlockError about peers that were lost, failed or left. If
	// this plane is closed, it returns ErrClosed.
	PeerFault(callText string) error
	// Fail makes the plane fail with err, unless it has already failed. Other ranks' waits then end
	// with ErrFault. It always returns err, as a driver.Fault.
	Fail(err error) error
	// Failed returns a channel that is closed when the plane fails.
	Failed() <-chan struct{}
	// Cause returns the error with which the plane failed, or nil.
	Cause() error
	// Abort makes the plane fail on all ranks. On this rank, Cause then returns cause, or
	// driver.ErrAborted if cause is nil.
	Abort(cause error)
	// Withdraw revokes this rank's tickets, except those that all other ranks are known to have
	// submitted, and reports whether it revoked any. A rank that submits a revoked ticket later gets
	// an error instead of waiting forever. Afterwards, only Close can be called.
	//
	// A plane between machines first asks the other ranks for their tickets. It waits for the
	// answers, for up to 3 s if a process is stopped. During the call, Submit publishes no tickets.
	Withdraw() bool
	// Close ends this rank's waits, notifies the other ranks, and leaves the group.
	Close() error
}

// Wait describes a wait for work of this rank.
type Wait struct {
	// Ticket is the ticket of the last collective on which the work depends, or 0 if the work needs
	// no other rank.
	Ticket    uint64
	Operation driver.Operation // of this collective
	// CallText returns a text such as "AllReduce 12 of group world".
	CallText func() string
	// FindFault looks for a better error than the report that another rank has failed. It returns
	// nil if there is none. FindFault itself may be nil.
	FindFault func() error
	// CountsText returns TimeoutError.Counts. It may be nil.
	CountsText func() string
	// Done reports whether the work has completed. Calls are serialized. For Diagnose, it can be
	// nil.
	Done func() bool
}

// IsDone reports whether the work is known to have completed.
func (w *Wait) IsDone() bool { return w.Done != nil && w.Done() }

// AddDetails returns the error to report for err, the error of a wait. It adds the result of
// CountsText to a TimeoutError. It replaces an error that matches ErrFault by the error of
// FindFault, if there is one. It returns other errors unchanged.
func (w *Wait) AddDetails(err error) error {
	if err == nil {
		return nil
	}

	var timeout *driver.TimeoutError
	if w.CountsText != nil && errors.As(err, &timeout) {
		// Change a copy, because other goroutines may read the error of a failed plane.
		withCounts := *timeout
		withCounts.Counts = w.CountsText()
		return &withCounts
	}

	if w.FindFault == nil || !errors.Is(err, driver.ErrFault) {
		return err
	}

	if explanation := w.FindFault(); explanation != nil {
		return explanation
	}

	return err
}

// FetchNoter is an optional interface of a Plane that can describe fetches of memory in errors. In
// a fetch, a rank asks another to share memory with it.
type FetchNoter interface {
	// NoteFetch announces to the other ranks that this rank fetches memory from a group rank, until
	// end is called. Meanwhile, errors of ranks that wait for this rank name both ranks.
	NoteFetch(rank int) (end func())
}
