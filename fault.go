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

// lifetime records the end of a group, by Close or by a fault: an error that makes the group fail.
// After a crash of rank 1, rank 0 may detect that rank 1 is lost, and rank 2 only that rank 0 has
// failed. In an inquiry, the ranks then agree on one cause, which all calls of the group return.
type lifetime struct {
	roster
	rt      *Runtime
	comm    driver.Communicator
	inquiry *inquiry
	events  *groupEvents
	state   *ranked.Spin[groupState]
	failing chan struct{} // closed when this rank detects a fault, before the inquiry

	ctx        context.Context // canceled with ErrClosed or the agreed cause
	cancel     context.CancelCauseFunc
	fault      atomic.Int32   // faultUnknown, faultKnown or faultRepaired
	background sync.WaitGroup // the group's goroutines
}

// Values of lifetime.fault.
const (
	faultUnknown int32 = iota // the program does not know of a fault
	// faultKnown means that the group's pools are suspect, because some ranks may have allocated
	// buffers that others have not.
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

// err returns why the group has ended, or nil. The caller returns the result to the program.
func (l *lifetime) err() error {
	err := context.Cause(l.ctx)
	l.markKnown(err)
	return err
}

// cause is err after the running inquiry, if any. It stops waiting when ctx ends.
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

// awaitFault replaces a fault of this group by the cause on which the ranks agree. It returns other
// errors unchanged.
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

	// Some PeerErrors, which match ErrFault, do not identify their group.
	return lifetimeOf(err) == l || errors.Is(err, driver.ErrFault)
}

// lifetimeOf returns the lifetime of the group in which a fault occurred, or nil if err is not a
// fault. For a PriorError, it is the group of the skipped call.
func lifetimeOf(err error) *lifetime {
	if err == nil {
		return nil // errors.As would allocate
	}

	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}

	l, _ := fault.Owner.(*lifetime) // nil for other owners
	return l
}

// isFault is false for nil and for an ErrClosed.
func isFault(err error) bool { return err != nil && !errors.Is(err, ErrClosed) }

// markKnown makes the group's pools suspect if err is the first fault. Calls must pass a fault to
// markKnown before they return it to the program.
func (l *lifetime) markKnown(err error) {
	if !isFault(err) || l.fault.Load() != faultUnknown {
		return
	}

	for _, p := range l.rt.registry.allPools() {
		if p.suspicion.isAffectedBy(&l.roster) {
			p.realigner.markSuspect(l)
		}
	}

	l.fault.CompareAndSwap(faultUnknown, faultKnown) // markRepaired may have set faultRepaired
}

// abort makes the group fail with ErrAborted, unless it has failed before.
func (l *lifetime) abort() { l.comm.Abort(fmt.Errorf("group %s: %w", l.id, ErrAborted)) }

// markRepaired records that the ranks have repaired the group's pools.
func (l *lifetime) markRepaired() {
	l.abort() // this rank may not have detected the fault yet
	l.markKnown(ErrAborted)
	l.fault.Store(faultRepaired)
}

// failStream makes s fail if the group has failed. A call that has not been queued on s calls it,
// because later work on s may need the result of the call.
func (l *lifetime) failStream(s *Stream) {
	if cause := l.comm.Cause(); isFault(cause) {
		s.queue.Fail(cause)
		l.markKnown(cause)
	}
}

// close ends the group, and reports whether a fault had ended it before.
func (l *lifetime) close() (hadFailed bool) {
	if cause := l.comm.Cause(); isFault(cause) {
		<-l.ctx.Done() // other ranks may need this rank in the inquiry
		l.markKnown(cause)
	}

	hadFailed = l.hasEnded()
	l.state.Lock() // prevents other functions from starting goroutines of the group
	defer l.state.Unlock()
	l.cancel(fmt.Errorf("group %s: %w", l.id, ErrClosed)) // has no effect after a fault
	return hadFailed
}
