package symmem

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/ranked"
)

// lifetime records whether and why a group has ended: it was closed, or it has failed. The error
// that makes a group fail is its fault. First, some rank detects a fault. Then all ranks agree on
// one cause, which their calls return.
type lifetime struct {
	roster
	rt      *Runtime
	comm    driver.Communicator
	inquiry *inquiry // with it, the ranks agree on the cause of a fault
	events  *groupEvents
	state   *ranked.Spin[groupState]
	// ctx is canceled with the reason when the group is closed or its ranks have agreed on the
	// cause of a fault.
	ctx    context.Context
	cancel context.CancelCauseFunc
	// failing is closed, before ctx is canceled, when this rank detects a fault.
	failing    chan struct{}
	fault      atomic.Int32   // faultNotReturned, faultReturned or faultRepaired
	background sync.WaitGroup // the group's goroutines
}

func newLifetime() *lifetime {
	l := &lifetime{failing: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// Values of lifetime.fault.
const (
	// faultNotReturned means that there is no fault, or that no call has returned it yet.
	faultNotReturned int32 = iota
	// faultReturned means that a call has returned the fault. Later calls still record their
	// buffers, because another rank may have queued the same calls before it detected the fault.
	faultReturned
	// faultRepaired means that, after the fault, the ranks have given the group's pools the same
	// state again. Later calls do not record their buffers.
	faultRepaired
)

// err returns why the group has ended: an ErrClosed, or the cause of its fault. Until the ranks
// agree on the cause, err returns nil. Like recordFault, the first err after a fault marks pools
// suspect.
func (l *lifetime) err() error { return l.recordFault(context.Cause(l.ctx)) }

// cause is like err, but if this rank has detected a fault, it waits until the ranks agree on the
// cause or ctx ends.
func (l *lifetime) cause(ctx context.Context) error {
	if l.ctx.Err() != nil || l.comm.Cause() == nil {
		return l.err()
	}

	ctx = orBackground(ctx)
	ranked.AssertMayWait()
	select {
	case <-l.ctx.Done():
	case <-ctx.Done():
	}

	if l.ctx.Err() != nil {
		return l.err()
	}

	return fmt.Errorf("waiting for the cause of the fault of group %s: %w", l.id,
		context.Cause(ctx))
}

// watch regularly checks the peers (the other ranks) until the group ends. After a fault, it lets
// the ranks agree on the cause.
func (l *lifetime) watch() {
	ticker := time.NewTicker(l.peerCheckInterval())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.comm.CheckPeers()
			ticker.Reset(l.peerCheckInterval())
		case <-l.comm.Failed():
			if l.ctx.Err() == nil {
				l.endWithFault()
			}

			return
		case <-l.ctx.Done():
			return
		}
	}
}

// endWithFault lets the ranks agree on the cause of the communicator's fault, and ends the group
// with the cause.
func (l *lifetime) endWithFault() {
	close(l.failing)
	cause := l.comm.Cause()
	hasLeft := errors.Is(cause, ErrClosed) // this rank closed the communicator: nothing to agree on
	if !hasLeft {
		cause = l.inquiry.run(cause)
	}

	l.cancel(cause)
	l.events.recordFault(cause)
}

const maxPeerCheckInterval = time.Second

// peerCheckInterval is at most a quarter of the timeout, so that idle ranks detect faults in time.
func (l *lifetime) peerCheckInterval() time.Duration {
	quarter := l.limit.Get() / 4
	return min(maxPeerCheckInterval, max(quarter, time.Millisecond))
}

// awaitFault waits if err is a fault of this group: it returns the cause that the ranks agree on.
// It returns any other err, and nil, at once.
func (l *lifetime) awaitFault(err error) error {
	if err == nil || !l.isOwnFault(err) {
		return err
	}

	if errors.Is(err, driver.ErrInterrupted) {
		return err // the program has interrupted the call, so it must not wait again
	}

	ranked.AssertMayWait()
	<-l.ctx.Done()
	return l.err()
}

// isOwnFault reports whether err is the fault of this group. After a fault of the group, that
// includes a PeerError (other ranks have failed first), even if it names no owner.
func (l *lifetime) isOwnFault(err error) bool {
	if l.comm.Cause() == nil {
		return false
	}

	return lifetimeOf(err) == l || errors.Is(err, driver.ErrFault)
}

// lifetimeOf returns the lifetime of the group whose fault err is. If err is no fault, it returns
// nil. A PriorError belongs to the group whose call was skipped.
func lifetimeOf(err error) *lifetime {
	if err == nil {
		return nil // errors.As would allocate
	}

	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}

	l, _ := fault.Owner.(*lifetime) // nil if the owner has another type
	return l
}

// recordFault returns err: nil, an ErrClosed or a fault. Call it before a fault is returned to the
// program. The first call with a fault marks the group's pools suspect: their layout may differ
// between the ranks.
func (l *lifetime) recordFault(err error) error {
	isFault := err != nil && !errors.Is(err, ErrClosed)
	if !isFault || l.fault.Load() != faultNotReturned {
		return err
	}

	for _, p := range l.rt.registry.allPools() {
		if p.suspicion.isAffectedBy(&l.roster) {
			p.realigner.markSuspect(l)
		}
	}

	l.fault.CompareAndSwap(faultNotReturned, faultReturned) // keeps faultRepaired
	return err
}

// recordFaultOfCommunicator records the fault that the communicator has detected. If there is
// none, it returns false.
func (l *lifetime) recordFaultOfCommunicator() bool {
	cause := l.comm.Cause()
	if cause == nil || errors.Is(cause, ErrClosed) {
		return false
	}

	_ = l.recordFault(cause) // returns cause
	return true
}

func (l *lifetime) abort() { l.comm.Abort(fmt.Errorf("group %s: %w", l.id, ErrAborted)) }

// resolve records that the fault of a group has been repaired. If the group has not failed on this
// rank yet, resolve makes it fail first.
func (l *lifetime) resolve() {
	l.abort() // does nothing in a group that has failed
	_ = l.recordFault(ErrAborted)
	l.fault.Store(faultRepaired)
}

// failStream returns err, with which the group has refused a call. If the group has failed, it
// also makes the stream fail, because later work on the stream may need the result of the call.
func (l *lifetime) failStream(s *Stream, err error) error {
	if cause := l.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
		s.queue.Fail(cause)
		_ = l.recordFault(cause)
	}

	return err
}

// close ends the group. hadFailed is true if a fault had ended it before.
func (l *lifetime) close() (hadFailed bool) {
	if cause := l.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
		<-l.ctx.Done() // other ranks may need this one to determine the cause
		_ = l.recordFault(cause)
	}

	hadFailed = l.ctx.Err() != nil
	l.state.Lock() // no goroutine of the group starts after this
	defer l.state.Unlock()
	l.cancel(fmt.Errorf("group %s: %w", l.id, ErrClosed)) // has no effect after a fault
	return hadFailed
}
