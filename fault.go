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

// Suppose that rank 1 of a group crashes during an AllReduce. Rank 0 detects that rank 1 is lost.
// Rank 2 detects only that rank 0 has failed. Each of these errors is the fault of a rank. In an
// inquiry, the ranks then agree on one cause: rank 1 is lost. From then on, the calls of the group
// return this cause on all ranks.
//
// Rank 2 may have allocated a buffer for a call that rank 0 never makes. So a pool can have a
// different layout on each rank. When a call returns the fault to the program, the group's pools
// become suspect. A later call repairs them: it gives them the same layout on all ranks.

// lifetime records whether a group has ended, and why: it was closed, or it has failed.
type lifetime struct {
	roster
	rt      *Runtime
	comm    driver.Communicator
	inquiry *inquiry
	events  *groupEvents
	state   *ranked.Spin[groupState]
	failing chan struct{} // closed when this rank detects a fault, before ctx is canceled
	// ctx is canceled when the group is closed or the ranks have agreed on a cause. Its cause is an
	// ErrClosed or the agreed cause.
	ctx        context.Context
	cancel     context.CancelCauseFunc
	fault      atomic.Int32   // faultNotReturned, faultReturned or faultRepaired
	background sync.WaitGroup // the group's goroutines
}

// Values of lifetime.fault.
const (
	// faultNotReturned means that there is no fault, or that no call has returned it yet.
	faultNotReturned int32 = iota
	// faultReturned means that a call has returned the fault. Later calls still record that they use
	// their buffers, because another rank may have queued the same calls before it detected the
	// fault.
	faultReturned
	// faultRepaired means that the group's pools have been repaired since the fault. Later calls do
	// not record that they use their buffers.
	faultRepaired
)

func newLifetime() *lifetime {
	l := &lifetime{failing: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
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
			ticker.Reset(l.peerCheckInterval()) // the timeout may have changed
		case <-l.comm.Failed():
			hasEnded := l.ctx.Err() != nil
			if !hasEnded {
				l.endWithFault()
			}

			return
		case <-l.ctx.Done():
			return
		}
	}
}

const maxPeerCheckInterval = time.Second

// peerCheckInterval is at most a quarter of the timeout, so that idle ranks detect faults in time.
func (l *lifetime) peerCheckInterval() time.Duration {
	quarter := max(l.limit.Get()/4, time.Millisecond)
	return min(quarter, maxPeerCheckInterval)
}

// endWithFault lets the ranks agree on the cause of this rank's fault, and ends the group with it.
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

// err returns why the group has ended: an ErrClosed, or the cause on which the ranks have agreed.
// Otherwise, it returns nil. It records the cause with recordFault.
func (l *lifetime) err() error { return l.recordFault(context.Cause(l.ctx)) }

// cause is like err, but if this rank has detected a fault, it waits until the ranks agree on the
// cause or ctx ends.
func (l *lifetime) cause(ctx context.Context) error {
	hasEnded := l.ctx.Err() != nil
	if hasEnded || l.comm.Cause() == nil {
		return l.err()
	}

	ctx = orBackground(ctx)
	ranked.AssertMayWait()
	select {
	case <-l.ctx.Done():
	case <-ctx.Done():
	}

	hasEnded = l.ctx.Err() != nil
	if hasEnded {
		return l.err()
	}

	return fmt.Errorf("waiting for the cause of the fault of group %s: %w", l.id,
		context.Cause(ctx))
}

// awaitFault replaces this group's fault by the cause on which the ranks agree, and waits for it.
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

// isOwnFault reports whether err is the fault of this group. After a fault of the group, a
// PeerError (other ranks have failed first) counts even if it does not name its group.
func (l *lifetime) isOwnFault(err error) bool {
	if l.comm.Cause() == nil {
		return false
	}

	return lifetimeOf(err) == l || errors.Is(err, driver.ErrFault)
}

// lifetimeOf returns the lifetime of the group whose fault err is. If err is no fault, it returns
// nil. If err is a PriorError (a call was skipped after an earlier failure), it returns the
// lifetime of the group whose call was skipped.
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

// recordFault returns err: nil, an ErrClosed or a fault. Call it before a call returns a fault to
// the program. The first recordFault with a fault makes the group's pools suspect.
func (l *lifetime) recordFault(err error) error {
	isFault := err != nil && !errors.Is(err, ErrClosed)
	isFirst := isFault && l.fault.Load() == faultNotReturned
	if !isFirst {
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

// detectedFault returns the fault that this rank has detected, or nil.
func (l *lifetime) detectedFault() error {
	cause := l.comm.Cause()
	isFault := cause != nil && !errors.Is(cause, ErrClosed)
	if !isFault {
		return nil
	}

	return cause
}

// recordDetectedFault records the fault that this rank has detected. If there is none, it returns
// false.
func (l *lifetime) recordDetectedFault() bool {
	fault := l.detectedFault()
	if fault == nil {
		return false
	}

	_ = l.recordFault(fault) // returns fault
	return true
}

// abort makes the group fail with an ErrAborted, unless it has failed before.
func (l *lifetime) abort() { l.comm.Abort(fmt.Errorf("group %s: %w", l.id, ErrAborted)) }

// resolve records that the group's pools have been repaired. If the group has not failed on this
// rank yet, resolve makes it fail first.
func (l *lifetime) resolve() {
	l.abort()
	_ = l.recordFault(ErrAborted)
	l.fault.Store(faultRepaired)
}

// failStream returns err, with which the group has refused a call. After a fault, it also makes the
// stream fail, because later work on the stream may need the result of the call.
func (l *lifetime) failStream(s *Stream, err error) error {
	if fault := l.detectedFault(); fault != nil {
		s.queue.Fail(fault)
		_ = l.recordFault(fault)
	}

	return err
}

// close ends the group. hadFailed is true if a fault had ended it before.
func (l *lifetime) close() (hadFailed bool) {
	if fault := l.detectedFault(); fault != nil {
		<-l.ctx.Done() // other ranks may need this one for the inquiry
		_ = l.recordFault(fault)
	}

	hadFailed = l.ctx.Err() != nil
	l.state.Lock() // no goroutine of the group starts after this
	defer l.state.Unlock()
	l.cancel(fmt.Errorf("group %s: %w", l.id, ErrClosed)) // has no effect after a fault
	return hadFailed
}
