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

// lifetime records whether a group is open, failed or closed, and the reason.
type lifetime struct {
	roster
	rt      *Runtime
	comm    driver.Communicator
	inquiry *inquiry
	events  *groupEvents
	state   *ranked.Spin[groupState]
	// ctx is canceled by end when the group ends. Its cause is the group's first fault, which is the
	// same on all ranks.
	ctx context.Context
	end context.CancelCauseFunc
	// failing is closed as soon as this rank has seen a fault, before ctx is canceled.
	failing chan struct{}
	// fault is unseen, seen or resolved.
	fault atomic.Int32
	// background counts the goroutines of the group.
	background sync.WaitGroup
}

func newLifetime() *lifetime {
	l := &lifetime{failing: make(chan struct{})}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

// The states of a group's fault on this rank.
const (
	unseen int32 = iota
	// seen: a call has returned the fault to the program. Calls still record the buffers that they
	// use, because another rank may have queued the same call before it saw the fault.
	seen
	// resolved: the pools have been realigned since the fault. Calls are refused and record nothing.
	resolved
)

// err returns the fault that ended the group, without waiting for it.
func (l *lifetime) err() error { return l.noteFault(context.Cause(l.ctx)) }

// cause returns the fault that ended the group, or nil if this rank has seen none. After a fault it
// waits until the ranks have determined the cause or the context ends.
func (l *lifetime) cause(ctx context.Context) error {
	if l.ctx.Err() == nil && l.comm.Cause() != nil {
		ctx = orBackground(ctx)
		ranked.Waiting()
		select {
		case <-l.ctx.Done():
		case <-ctx.Done():
			if l.ctx.Err() == nil {
				return fmt.Errorf("waiting for the cause of the fault of group %s: %w", l.id,
					context.Cause(ctx))
			}
		}
	}
	return l.err()
}

// watch waits for a fault of any rank, even while the program makes no calls. It then determines
// the cause together with the other ranks.
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
				close(l.failing)
				cause := l.comm.Cause()
				if !errors.Is(cause, ErrClosed) { // a rank that has left the group does not ask others
					cause = l.inquiry.run(cause)
				}
				l.end(cause)
				l.events.fault(cause)
			}
			return
		case <-l.ctx.Done():
			return
		}
	}
}

const maxPeerCheckInterval = time.Second

// peerCheckInterval returns the interval at which a group checks its peers for faults while no call
// is in progress. If the timeout is short, the interval is shorter, too, so that a late rank soon
// joins the search for the cause.
func (l *lifetime) peerCheckInterval() time.Duration {
	return min(maxPeerCheckInterval, max(l.limit.Get()/4, time.Millisecond))
}

// awaitCause waits until the ranks have determined the cause of a fault that the backend has
// returned, and returns that cause. It returns any other error unchanged.
func (l *lifetime) awaitCause(err error) error {
	if err == nil || errors.Is(err, driver.ErrInterrupted) || !l.owns(err) {
		return err // a caller that was interrupted must not wait for the other ranks again
	}
	ranked.Waiting()
	<-l.ctx.Done()
	return l.err()
}

// owns reports whether an error of the communicator is a fault of the group.
func (l *lifetime) owns(err error) bool {
	return l.comm.Cause() != nil && (lifetimeOf(err) == l || errors.Is(err, driver.ErrFault))
}

// lifetimeOf returns the lifetime of the group that a backend's error belongs to, or nil. A
// PriorError belongs to the group whose call was skipped. Its Cause may belong to another group,
// which failed earlier.
func lifetimeOf(err error) *lifetime {
	if err == nil {
		return nil // errors.As would allocate
	}
	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}
	l, _ := fault.Owner.(*lifetime)
	return l
}

// noteFault records that err is about to be returned to the program, and returns err. The first
// fault of the group marks its pools suspect.
func (l *lifetime) noteFault(err error) error {
	if err == nil || errors.Is(err, ErrClosed) || l.fault.Load() != unseen {
		return err
	}
	for _, p := range l.rt.registry.allPools() {
		if p.suspicion.affectedBy(&l.roster) {
			p.realigner.raise(l)
		}
	}
	l.fault.CompareAndSwap(unseen, seen)
	return err
}

// noteCommunicatorFault calls noteFault with the fault of the communicator and reports whether
// there is one. A group that was closed without a fault has none.
func (l *lifetime) noteCommunicatorFault() bool {
	cause := l.comm.Cause()
	if cause == nil || errors.Is(cause, ErrClosed) {
		return false
	}
	_ = l.noteFault(cause)
	return true
}

func (l *lifetime) abort() { l.comm.Abort(fmt.Errorf("group %s: %w", l.id, ErrAborted)) }

// resolve fails the group on this rank and marks its fault resolved. Some rank must have seen the
// fault.
func (l *lifetime) resolve() {
	l.abort()
	_ = l.noteFault(ErrAborted)
	l.fault.Store(resolved)
}

// failStream fails the stream of a refused call if the group has failed, because work queued later
// may use the result of the call. It returns err.
func (l *lifetime) failStream(s *Stream, err error) error {
	if cause := l.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
		s.queue.Fail(cause)
		_ = l.noteFault(cause)
	}
	return err
}

// close ends the group on this rank for Group.Close, and reports whether the group had failed
// before.
func (l *lifetime) close() (failed bool) {
	if cause := l.comm.Cause(); cause != nil && !errors.Is(cause, ErrClosed) {
		<-l.ctx.Done() // other ranks may be waiting for this one to determine the cause
		_ = l.noteFault(cause)
	}
	failed = l.ctx.Err() != nil
	l.state.Lock() // no goroutine of the group starts after this
	defer l.state.Unlock()
	l.end(fmt.Errorf("group %s: %w", l.id, ErrClosed))
	return failed
}
