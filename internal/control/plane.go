// Package control connects the ranks of a group for everything except the transfer of data.
//
// A backend may leave data transfer to a library, as the GPU backend does with NCCL. It still has
// to agree with the other ranks, compare calls with them, detect lost ranks, and exchange the
// causes of failures. Backends use a Plane for these tasks. Package shm implements planes in
// shared memory for ranks on one machine, and package tcp implements them for ranks on several
// machines. Package controltest tests that both satisfy the contract of Plane.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane is the control plane of a group of ranks. A plane is open until it fails or is closed.
// It fails with the first fault that this rank observes or causes. On a failed plane, only
// Decide, Departed and exchanges on LaneFault still work.
//
// A ticket identifies a collective: on every rank, the n-th collective launched has ticket n. The
// collectives' data does not pass through the plane. The plane records which tickets each rank has
// submitted and which ticket it waits for, and thereby determines which ranks are missing and
// which are deadlocked.
//
// Methods are safe for concurrent use unless they state otherwise.
type Plane interface {
	// Exchange implements driver.Communicator.
	Exchange(ctx context.Context, lane driver.Lane, payload []byte) ([][]byte, error)
	// Decisions implements driver.Communicator.
	driver.Decisions
	// Values implements driver.Communicator.
	driver.Values
	// Inspector describes what ranks wait for.
	driver.Inspector
	// Submit allocates the next ticket and publishes it to the other ranks. Every launch calls it,
	// so it takes only a few nanoseconds. Calls must be serialized.
	Submit() uint64
	// TrySubmit is like Submit, but returns false and submits nothing if the plane or a peer is
	// known to have failed. It also returns false if a peer is known to have left without
	// submitting the next ticket.
	TrySubmit() (ticket uint64, ok bool)
	// Compare waits until every rank has called Compare as often as this rank, and then compares
	// the digests of their calls. If the digests differ, every rank gets a driver.MismatchError
	// with the ticket as its Number. The device's timeout bounds the wait, which returns the same
	// errors as an exchange. An error makes the plane fail. Calls must be serialized.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true. Meanwhile, this rank counts as being in collective
	// w.Ticket. Ranks that have not submitted w.Ticket yet are missing, and must submit it within
	// the device's timeout. When all ranks have submitted it, only ctx bounds the wait, because
	// the work may take long.
	//
	// If a peer fails before it submits the ticket, the wait ends immediately. If the peer had
	// submitted it, the wait continues for Grace, because the peer usually failed in a later call
	// and the work can then still complete.
	//
	// If ctx is done first, Await returns the cause of ctx and the plane stays open.
	// Any other error makes the plane fail, and is a RankLostError, TimeoutError, DeadlockError or
	// ErrFault of package driver, or the plane's Cause.
	Await(ctx context.Context, w Wait) error
	// If the work of w may never complete, Diagnose returns the reason. Otherwise it returns nil.
	// It does not wait. since is the time at which the caller began to wait. Diagnose returns the
	// same errors as Await but does not make the plane fail. If a peer failed after it had
	// submitted the ticket, Diagnose returns nil; PeerFailed reports such a failure.
	Diagnose(w Wait, since time.Time) error
	// PeerFailed reports whether a peer has failed or is lost, or whether this plane is closed.
	// TrySubmit makes the same check for every launch, because work that needs a lost rank may
	// block a GPU forever. As long as no peer's state changes, the check takes only a few
	// nanoseconds.
	PeerFailed() bool
	// PeerFault returns a RankLostError, PeerError or DeadlockError about the peers known to be
	// lost, to have failed or to have left. It returns ErrClosed if this plane is closed. It must
	// be called only after PeerFailed has returned true.
	PeerFault(doing string) error
	// Fail makes the plane fail with err, unless it has already failed, and returns err as a
	// driver.Fault of the group. Waits on other ranks end with ErrFault.
	Fail(err error) error
	// Failed returns a channel that is closed when the plane fails.
	Failed() <-chan struct{}
	// Cause returns the first fault that this rank observed or caused, or nil.
	Cause() error
	// Abort makes the plane fail on all ranks. Waits on this rank end with the given cause
	// (driver.ErrAborted if it is nil), and waits on other ranks end with driver.ErrFault.
	Abort(cause error)
	// Withdraw revokes this rank's tickets, except those that all other ranks are known to have
	// submitted. A rank that will not complete its remaining collectives calls Withdraw, so that
	// ranks that submit the revoked tickets later find this rank missing instead of waiting
	// forever. After Withdraw, only Close may be called; tickets that a concurrent call still
	// allocates are not published. If all ranks have submitted all of this rank's tickets,
	// Withdraw changes nothing and returns false.
	Withdraw() bool
	// Close ends this rank's waits and leaves the group. It notifies the other ranks but does not
	// wait for them.
	Close() error
}

// Wait describes a wait for work that this rank has launched.
type Wait struct {
	// Ticket identifies the last collective that the work depends on. It is 0 if the work needs no
	// other rank, so that only a fault of this rank can end the wait early.
	Ticket uint64
	// Operation is the operation of that last collective. It appears in errors and warnings on
	// other ranks.
	Operation driver.Operation
	// InCall describes the wait in this rank's errors and warnings, for example "AllReduce 12 of
	// group world".
	CallText func() string
	// Why, if set, is called before a wait returns another rank's fault. It returns a more precise
	// error to return instead, or nil if it knows none.
	Why func() error
	// Counts, if set, is called when a wait times out. Its result becomes TimeoutError.Counts.
	Counts func() string
	// Done reports whether the work has completed. Only one goroutine at a time calls it. It may
	// be nil in calls of Diagnose.
	Done func() bool
}

// Ended reports whether the work is known to have completed.
func (w *Wait) Ended() bool { return w.Done != nil && w.Done() }

// Refine adds the result of Counts to err if err is a TimeoutError. If err is another rank's fault
// and Why returns an error, Refine returns that error instead.
func (w *Wait) Refine(err error) error {
	if err == nil {
		return nil
	}
	var late *driver.TimeoutError
	if w.Counts != nil && errors.As(err, &late) {
		counted := *late // a copy, because other goroutines may read the error of a failed plane
		counted.Counts = w.Counts()
		return &counted
	}
	if w.Why == nil || !errors.Is(err, driver.ErrFault) {
		return err
	}
	if better := w.Why(); better != nil {
		return better
	}
	return err
}
