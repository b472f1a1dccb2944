// Package control connects the ranks of a group for everything except the transfer of data.
//
// A backend that leaves data transfer to a library, such as NCCL, uses a Plane to agree with the
// other ranks, compare calls with them, and detect lost ranks. Package shm implements planes for
// ranks on one machine. Package tcp implements them for several machines.
package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Plane is the control plane of a group. It fails with the first fault that this rank observes or
// causes. On a failed plane, only Decide, Departed and exchanges on LaneFault still work.
//
// A ticket identifies a collective: on every rank, the n-th collective launched has ticket n.
//
// Methods are safe for concurrent use unless they state otherwise.
type Plane interface {
	Exchange(ctx context.Context, lane driver.Lane, payload []byte) ([][]byte, error)
	driver.Decisions
	driver.Values
	driver.Inspector
	// Submit allocates the next ticket and publishes it. It takes only a few nanoseconds. Calls
	// must be serialized.
	Submit() uint64
	// TrySubmit is like Submit. If the plane or a peer has failed, or a peer has left without
	// submitting the next ticket, TrySubmit submits nothing and returns false.
	TrySubmit() (ticket uint64, ok bool)
	// Compare waits until every rank has called Compare as often as this rank, and compares the
	// digests of their calls. If they differ, every rank gets a driver.MismatchError with the
	// ticket as its Number. Timeouts and faults are handled as in Exchange. An error makes the
	// plane fail. Calls must be serialized.
	Compare(ticket uint64, call *driver.Call) error
	// Await waits until w.Done returns true. Each rank must submit w.Ticket within the device's
	// timeout. When all have, only ctx bounds the wait.
	//
	// If a peer fails before it submits the ticket, the wait ends immediately. If it had submitted
	// the ticket, the wait continues for Grace, because the work can usually still complete.
	//
	// If ctx is done first, Await returns the cause of ctx and the plane stays open. Any other
	// error makes the plane fail. It is a RankLostError, TimeoutError, DeadlockError or ErrFault of
	// package driver, or the plane's Cause.
	Await(ctx context.Context, w Wait) error
	// Diagnose returns the error with which Await would end now, or nil. The plane does not fail.
	// since is when the caller began to wait. If a peer failed after it had submitted the ticket,
	// Diagnose returns nil.
	Diagnose(w Wait, since time.Time) error
	// PeerFailed reports whether a peer has failed or is lost, or whether this plane is closed.
	PeerFailed() bool
	// PeerFault returns a RankLostError, PeerError or DeadlockError about the peers that were lost,
	// failed or left, or ErrClosed. Call it only after PeerFailed has returned true.
	PeerFault(doing string) error
	// Fail makes the plane fail with err, unless it has already failed, and returns err as a
	// driver.Fault. Waits on other ranks end with ErrFault.
	Fail(err error) error
	Failed() <-chan struct{}
	// Cause returns the error with which the plane failed, or nil.
	Cause() error
	// Abort makes the plane fail on all ranks. The error on this rank is cause, or
	// driver.ErrAborted if cause is nil.
	Abort(cause error)
	// Withdraw revokes this rank's tickets, except those that all other ranks are known to have
	// submitted. Ranks that submit a revoked ticket later find this rank missing instead of waiting
	// forever. After Withdraw, only Close may be called. Tickets from a concurrent call are not
	// published. If there is nothing to revoke, Withdraw returns false.
	Withdraw() bool
	// Close ends this rank's waits, notifies the other ranks, and leaves the group.
	Close() error
}

// Wait describes a wait for work that this rank has launched.
type Wait struct {
	// Ticket identifies the last collective that the work depends on. It is 0 if the work needs no
	// other rank.
	Ticket    uint64
	Operation driver.Operation
	// CallText describes the wait, for example "AllReduce 12 of group world".
	CallText func() string
	// Why, if set, is called before a wait returns another rank's fault. If Why returns an error,
	// the wait returns that error.
	Why func() error
	// Counts, if set, provides TimeoutError.Counts.
	Counts func() string
	// Done reports whether the work has completed. Calls are serialized. It may be nil for
	// Diagnose.
	Done func() bool
}

// Ended reports whether the work is known to have completed.
func (w *Wait) Ended() bool { return w.Done != nil && w.Done() }

// Refine adds the result of Counts to a TimeoutError. If err is another rank's fault and Why
// returns an error, Refine returns that error.
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
