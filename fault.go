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

// lifetime records the end of a group, by Close or by a fault (an error that makes the group fail).
// After a crash of rank 1, rank 0 may detect the crash, while rank 2 detects only that rank 0 has
// failed. In an inquiry, the ranks then agree on one cause, which all calls of the group return.
type lifetime struct {
	roster
	rt      *Runtime
	comm    driver.Communicator
	inquiry *inquiry
	events  *groupEvents
	state   *ranked.Spin[groupState]
	failing chan struct{} // closed when comm fails, before the inquiry

	ctx        context.Context // canceled with ErrClosed or the agreed cause
	cancel     context.CancelCauseFunc
	faultState atomic.Int32   // faultUnknown, faultKnown or faultRepaired
	background sync.WaitGroup // the group's goroutines
}

const (
	faultUnknown int32 = iota // no call has returned a fault to the program
	// faultKnown means that the group's pools are suspect: ranks that know of the fault may have
	// allocated different buffers than the others.
	faultKnown
	faultRepaired // the ranks have repaired the pools
)

func newLifetime() *lifetime {
	l := &lifetime{failing: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

func (l *lifetime) hasEnded() bool { return l.ctx.Err() != nil }

// watch checks the other ranks periodically until the group ends.
func (l *lifetime) watch() {
	ticker := time.NewTicker(l.peerCheckInterval())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.comm.CheckPeers()
			ticker.Reset(l.peerCheckInterval()) // the timeout may have changed
		case <-l.comm.Failed():
			if !l.hasEnded() {
				l.endAfterFailure()
			}

			return
		case <-l.ctx.Done():
			return
		}
	}
}

const maxPeerCheckInterval = time.Second

// peerCheckInterval ensures that idle ranks detect a fault well before the timeout.
func (l *lifetime) peerCheckInterval() time.Duration {
	quarter := max(l.limit.Get()/4, time.Millisecond)
	return min(quarter, maxPeerCheckInterval)
}

// endAfterFailure ends the group with the cause on which the ranks agree.
func (l *lifetime) endAfterFailure() {
	close(l.failing)
	cause := l.comm.Cause()
	wasClosed := errors.Is(cause, ErrClosed)
	if !wasClosed {
		cause = l.inquiry.run(cause)
	}

	l.cancel(cause)
	l.events.recordCause(cause)
}

// err returns why the group has ended, or nil. It marks a fault as known.
func (l *lifetime) err() error {
	err := context.Cause(l.ctx)
	l.markKnown(err)
	return err
}

// cause is like err, but first waits for a running inquiry, or until ctx ends.
func (l *lifetime) cause(ctx context.Context) error {
	isEnding := l.comm.Cause() != nil
	if l.hasEnded() || !isEnding {
		return l.err()
	}

	ctx = orBackground(ctx)
	ranked.AssertMayWait()
	select {
	case <-l.ctx.Done():
	case <-ctx.Done():
	}

	if l.hasEnded() {
		return l.err()
	}

	return fmt.Errorf("waiting for the cause of the fault of group %s: %w", l.id,
		context.Cause(ctx))
}

// awaitFault waits for the cause of a fault of this group, and returns the cause. It returns an
// ErrInterrupted, and errors other than faults, unchanged.
func (l *lifetime) awaitFault(err error) error {
	if err == nil || !l.isOwnFault(err) {
		return err
	}

	if errors.Is(err, driver.ErrInterrupted) {
		return err // an interrupted call must not wait again
	}

	ranked.AssertMayWait()
	<-l.ctx.Done()
	return l.err()
}

// isOwnFault reports whether err is a fault of this group.
func (l *lifetime) isOwnFault(err error) bool {
	hasFailed := l.comm.Cause() != nil
	if !hasFailed {
		return false
	}

	// ErrFault matches a PeerError, which may have no Owner.
	return lifetimeOf(err) == l || errors.Is(err, driver.ErrFault)
}

// lifetimeOf returns the lifetime of the group in which a fault occurred, or nil if err is not a
// fault. For a PriorError, it is the group of the skipped call.
func lifetimeOf(err error) *lifetime {
	if err == nil {
		return nil // avoids the allocation of errors.As
	}

	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}

	l, _ := fault.Owner.(*lifetime) // nil for other owners
	return l
}

// isFault reports whether the cause of a group's end is a fault: neither nil nor an ErrClosed.
func isFault(cause error) bool { return cause != nil && !errors.Is(cause, ErrClosed) }

// markKnown makes the group's pools suspect if cause is the first known fault. It must be called
// before a fault is returned to the program.
func (l *lifetime) markKnown(cause error) {
	if !isFault(cause) || l.faultState.Load() != faultUnknown {
		return
	}

	for _, p := range l.rt.registry.allPools() {
		if p.suspicion.isAffectedBy(&l.roster) {
			p.realigner.markSuspect(l)
		}
	}

	l.faultState.CompareAndSwap(faultUnknown, faultKnown) // keeps a concurrent faultRepaired
}

// abort makes the group fail with ErrAborted, unless it has already failed.
func (l *lifetime) abort() { l.comm.Abort(fmt.Errorf("group %s: %w", l.id, ErrAborted)) }

// markRepaired records that the ranks have repaired the group's pools.
func (l *lifetime) markRepaired() {
	l.abort() // this rank may not have detected the fault yet
	l.markKnown(ErrAborted)
	l.faultState.Store(faultRepaired)
}

// failStream makes s fail if the group has failed. It must follow a failed attempt to queue a call
// on s, because later work on s may need the result of the call.
func (l *lifetime) failStream(s *Stream) {
	if cause := l.comm.Cause(); isFault(cause) {
		s.queue.Fail(cause)
		l.markKnown(cause)
	}
}

// close ends the group, and reports whether a fault had ended it before.
func (l *lifetime) close() (hadFailed bool) {
	if cause := l.comm.Cause(); isFault(cause) {
		<-l.ctx.Done() // the end of the inquiry, in which other ranks may need this rank
		l.markKnown(cause)
	}

	hadFailed = l.hasEnded()
	l.state.Lock() // prevents other functions from starting goroutines of the group
	defer l.state.Unlock()
	l.cancel(fmt.Errorf("group %s: %w", l.id, ErrClosed)) // has no effect after a fault
	return hadFailed
}
