// Package control connects the ranks of a group for everything except the transfer of data.
//
// A backend that leaves data transfer to a library, as the GPU backend does with NCCL, still has to
// agree with the other ranks, compare calls with them, detect lost ranks, and exchange the causes
// of failures. It uses a Plane for that. Package shm implements planes in shared memory for ranks
// on one machine, and package tcp implements them for ranks on several machines. Package
// controltest tests both against the contract of Plane.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane is the control plane of a group of ranks. A plane is open until it fails or is closed. It
// fails with the first fault that this rank observes or causes. On a failed plane, only exchanges
// on LaneFault, Decide and Departed still work.
//
// A ticket identifies a collective: on every rank, the n-th collective launched has ticket n. The
// collectives' data does not pass through the plane. The plane records which tickets each rank has
// submitted and which ticket it waits for, and derives from that which ranks are missing and which
// are deadlocked.
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
	// TrySubmit is like Submit, but returns false without submitting if the plane or a peer is
	// known to have failed, or if a peer is known to have left without submitting the next ticket.
	TrySubmit() (ticket uint64, ok bool)
	// Compare waits until every rank has called Compare as often as this one and compares the
	// digests of their calls. If they differ, every rank gets a driver.MismatchError with the
	// ticket as its Number. The wait is bounded by the device's timeout and fails like the wait of
	// an exchange. An error fails the plane. Calls must be serialized.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true. Meanwhile this rank counts as being in collective
	// w.Ticket. Ranks that have submitted fewer tickets are missing, and must arrive within the
	// device's timeout. Once all ranks have submitted the work, only ctx bounds the wait, because
	// the work may take long.
	//
	// If a peer fails without having submitted the ticket, the wait ends immediately. If the peer
	// had submitted it, the work may continue for Grace, because a rank mostly fails in the next
	// call.
	//
	// If ctx ends first, Await returns its cause and the plane stays open. Any other error fails
	// the plane. It is a RankLostError, TimeoutError, DeadlockError or ErrFault of package driver,
	// or the Cause.
	Await(ctx context.Context, w Wait) error
	// Diagnose returns the reason why the work of w may never end, or nil. It does not wait. since
	// is the time at which the caller began to wait. Diagnose returns the same errors as Await but
	// does not fail the plane. If a peer failed after it had submitted the ticket, Diagnose returns
	// nil; PeerFailed reports such a failure.
	Diagnose(w Wait, since time.Time) error
	// PeerFailed reports whether a peer has failed or is lost, or whether this plane is closed.
	// TrySubmit checks this for every launch, because work that needs a lost rank may block a GPU
	// forever. The check takes a few nanoseconds while no peer's state has changed.
	PeerFailed() bool
	// PeerFault returns a RankLostError, PeerError or DeadlockError about the peers known to be
	// lost, to have failed or to have left. It returns ErrClosed if this plane is closed. It must
	// be called only after PeerFailed has returned true.
	PeerFault(doing string) error
	// Fail records err unless this rank already has a fault, and returns err as a driver.Fault of
	// the group. Waits on other ranks end with ErrFault.
	Fail(err error) error
	// Failed returns a channel that is closed when the plane fails. Cause then returns the reason.
	Failed() <-chan struct{}
	// Cause returns the first fault that this rank observed or caused, or nil.
	Cause() error
	// Abort fails the plane for all its ranks. Waits on this rank end with the given cause
	// (driver.ErrAborted if it is nil), and waits on other ranks with driver.ErrFault.
	Abort(cause error)
	// Withdraw revokes those of this rank's tickets that some other rank is not known to have
	// submitted, because this rank will never complete their collectives. Ranks that submit the
	// tickets later then find this rank missing instead of waiting forever. After Withdraw, only
	// Close may be called; tickets allocated in between are not published. If all ranks have
	// submitted all of this rank's tickets, Withdraw changes nothing and returns false.
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
	// Operation is that collective's operation, which appears in errors and warnings on other
	// ranks.
	Operation driver.Operation
	// Doing describes the wait in this rank's errors and warnings, for example "AllReduce 12 of
	// group world".
	Doing func() string
	// Why, if set, is called before a wait ends with another rank's fault. It returns a more
	// precise reason, or nil.
	Why func() error
	// Counts, if set, returns the TimeoutError.Counts for a wait that times out.
	Counts func() string
	// Done reports whether the work has completed. Only one goroutine at a time polls it. For
	// Diagnose it may be nil.
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
