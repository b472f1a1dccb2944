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

// Plane connects this rank to the other ranks of a group, its peers. Suppose that ranks 0 and 1 are
// about to run the group's 7th collective on GPUs. On each rank, the backend:
//
//   - calls Submit, which announces the collective to the peer and returns its number, the ticket 7
//   - may call Compare with the ticket, which checks that both ranks make the same call
//   - launches the collective on the GPU
//   - calls Await, which waits until the GPU has completed the work
//
// If rank 1 does not submit ticket 7 in time, Await returns a TimeoutError on rank 0, and the plane
// of rank 0 fails. A plane fails at the first fault that its rank observes or causes. From then on,
// only Decide, Departed and exchanges on driver.LaneFault work.
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
	// failed, a peer has failed, or a peer has left without submitting the next ticket.
	TrySubmit() (ticket uint64, ok bool)
	// Compare compares the digests (hashes) of the calls of all ranks. The n-th Compare of a rank
	// waits for the n-th Compare of all others. Calls must be serialized.
	//
	// If digests differ, every rank gets a driver.MismatchError with the ticket as its Number.
	// Timeouts and faults are handled as in Exchange. An error makes the plane fail.
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
	// Fail makes the plane fail with err, unless it has already failed. The waits of peers then end
	// with ErrFault. It always returns err, as a driver.Fault.
	Fail(err error) error
	// Failed returns a channel that is closed when the plane fails.
	Failed() <-chan struct{}
	// Cause returns the error with which the plane failed, or nil.
	Cause() error
	// Abort makes the plane fail on all ranks. On this rank, Cause then returns cause, or
	// driver.ErrAborted if cause is nil.
	Abort(cause error)
	// Withdraw revokes this rank's tickets, except those that all peers are known to have submitted.
	// It reports whether it has revoked any. A peer that submits a revoked ticket later gets an error
	// instead of waiting forever. Afterwards, only Close can be called.
	//
	// A plane between machines first asks the peers for their tickets. It waits for the answers, for
	// up to 3 s if a process is stopped. During the call, Submit announces no tickets.
	Withdraw() bool
	// Close ends this rank's waits, notifies the peers, and leaves the group.
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
	// Done reports whether the work has completed. Calls are serialized. For Diagnose, it can be
	// nil.
	Done func() bool
	// CountsText returns the text for TimeoutError.Counts. It may be nil.
	CountsText func() string
	// FindFault looks for a better error than one that only reports the failure of a peer. It returns
	// nil if there is none. FindFault itself may be nil.
	FindFault func() error
}

// IsDone reports whether the work is known to have completed.
func (w *Wait) IsDone() bool { return w.Done != nil && w.Done() }

// AddDetails returns the error to report for err, the error of a wait. It adds the result of
// CountsText to a TimeoutError. It replaces an error that matches ErrFault by the error of
// FindFault, if there is one. It returns other errors unchanged.
func (w *Wait) AddDetails(err error) error {
	timeout, isTimeout := errors.AsType[*driver.TimeoutError](err)
	if isTimeout && w.CountsText != nil {
		// Change a copy, because other goroutines may read the error of a failed plane.
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

// FetchNoter is an optional interface of a Plane that can mention fetches of memory in errors. In a
// fetch, a rank asks another to share memory with it.
type FetchNoter interface {
	// NoteFetch announces to the other ranks that this rank fetches memory from a group rank, until
	// end is called. Meanwhile, errors of ranks that wait for this rank name both ranks.
	NoteFetch(rank int) (end func())
}
