// Package control joins the ranks of a group for everything but their data.
//
// A backend that hands its data to somebody else, as the GPU backend does with NCCL, still has to
// agree with the other ranks, compare calls with them, notice those that are lost and find out
// together with them why they failed. It does that on a Plane. Two packages make planes: shm over
// shared memory, for ranks of one machine, and tcp for ranks of several. Package controltest holds
// the contract that both pass.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane is a control plane: it connects the ranks of a group. States: open; failed, after the first
// fault that this rank sees or causes, when only exchanges on LaneFault still work; closed.
// Transitions go one way only.
//
// Collectives are known by tickets: the n-th that a rank launches has ticket n, on every rank. The
// data moves elsewhere. The plane knows which tickets each rank has submitted and which it waits
// for. From that it finds out which ranks are missing and which can never meet.
//
// Methods are safe for use by several goroutines at once unless they say otherwise.
type Plane interface {
	// Exchange is that of driver.Communicator.
	Exchange(ctx context.Context, lane driver.Lane, payload []byte) ([][]byte, error)
	// Values are those of driver.Communicator.
	driver.Values
	// Submit takes the next ticket and publishes it to the others. It costs a few nanoseconds,
	// since launches pay for it. The caller makes its calls one at a time.
	Submit() uint64
	// TrySubmit is Submit as long as the plane has not failed and is not PeerFailed, and no peer
	// has left without the next ticket, as far as is known here; else it takes none.
	TrySubmit() (ticket uint64, ok bool)
	// Compare waits until every rank has come to its n-th Compare, and compares the digests of
	// the calls. If they differ, every rank gets a driver.MismatchError with the ticket as its
	// Number. The wait is bounded by the device's timeout and ends as that of an exchange does.
	// An error fails the plane. The caller makes its calls one at a time.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true; this rank counts meanwhile as being in the collective
	// w.Ticket, and a rank that has submitted fewer tickets is missing. The wait as such is
	// bounded by ctx alone, since work that all ranks have submitted may take long; missing ranks
	// have the device's timeout to come.
	//
	// A peer that has failed without the ticket ends the wait at once; else the work still has
	// Grace to end, since ranks mostly fail over the call that comes next.
	//
	// If ctx ends first the result is its cause, and the plane has not failed. Any other error is
	// a RankLostError, TimeoutError, DeadlockError or ErrFault of package driver, or the Cause, and
	// the plane has failed with it.
	Await(ctx context.Context, w Wait) error
	// Diagnose returns at once why the work of w, for which a caller has waited since the given
	// time, may never end: an error as Await returns it, or nil. It does not fail the plane. A peer
	// that has failed after it submitted the ticket is no error here yet; PeerFailed reports it.
	Diagnose(w Wait, since time.Time) error
	// PeerFailed reports whether a peer has failed or is lost, or this plane was closed. TrySubmit
	// asks it at every launch, since work that needs a rank which is lost may hold up a GPU for
	// ever, so it costs a few nanoseconds as long as nothing has changed.
	PeerFailed() bool
	// PeerFault returns a driver.PeerError that names the peers which have failed, or are lost, as
	// far as is known here: what a caller that asked PeerFailed goes on with.
	PeerFault(doing string) error
	// Fail records the first fault of this rank, takes the others out of their waits, which end
	// with ErrFault, and returns err.
	Fail(err error) error
	// Failed is closed when the plane fails; Cause then says why on this rank.
	Failed() <-chan struct{}
	// Cause returns the fault that this rank saw first, or nil.
	Cause() error
	// Abort fails the plane for all its ranks. Waits on this rank end with the given cause (nil
	// means driver.ErrAborted), those of others with driver.ErrFault.
	Abort(cause error)
	// Withdraw takes back the tickets that, as far as is known here, some rank has not submitted:
	// this rank's part in them ends unfinished, and who submits them later finds it missing instead
	// of waiting forever. Only Close follows; tickets that are taken meanwhile are not published.
	// It returns false, and has changed nothing, if all ranks have submitted all tickets of this
	// one.
	Withdraw() bool
	// Close ends the waits of this rank and leaves the group. It waits for no other rank. The
	// others are told that this one has left.
	Close() error
}

// Wait describes a wait of this rank for its own work.
type Wait struct {
	// Ticket is that of the last collective which the work needs; 0 is work that needs no other
	// rank, which then only a fault of this rank ends.
	Ticket uint64
	// Operation is what that collective does, for the messages of others.
	Operation driver.Operation
	// Doing says what this rank waits for, in its own messages, such as "AllReduce 12 of group world".
	Doing func() string
	// Why, if set, is asked before the fault of another rank is given as the reason that the
	// work will not end: this rank may know a better one.
	Why func() error
	// Counts, if set, is asked for TimeoutError.Counts before a timeout ends the wait.
	Counts func() string
	// Done reports whether the work has ended. It is called again and again, from one goroutine,
	// and may be nil for Diagnose.
	Done func() bool
}

// Ended reports whether the work is known to have ended.
func (w *Wait) Ended() bool { return w.Done != nil && w.Done() }

// Refine replaces the fault of another rank by what Why returns, if that knows better, and adds to
// a TimeoutError what Counts returns.
func (w *Wait) Refine(err error) error {
	var late *driver.TimeoutError
	if w.Counts != nil && errors.As(err, &late) {
		counted := *late // others may read the error of a plane that has failed
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
