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

// An error that makes a group fail is a fault. After a crash of rank 1, rank 0 may detect that rank
// 1 is lost, and rank 2 only that rank 0 has failed. In an inquiry, the ranks agree on one cause,
// which all calls of the group then return. Some ranks may have allocated buffers that others have
// not, so the group's pools are suspect until the ranks have repaired their layouts.

// lifetime records the end of a group, by Close or by a fault.
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
	fault      atomic.Int32   // faultNotReturned, faultReturned or faultRepaired
	background sync.WaitGroup // the group's goroutines
}

// Values of lifetime.fault.
const (
	faultNotReturned int32 = iota // no call has returned a fault to the program
	// faultReturned lets failing calls record the uses of their buffers, because other ranks may have
	// queued the same calls before they detected the fault.
	faultReturned
	faultRepaired // the pools have been repaired, and failing calls no longer record uses
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
	isFault := !errors.Is(cause, ErrClosed) // this rank may have closed the group
	if isFault {
		cause = l.inquiry.run(cause)
	}

	l.cancel(cause)
	l.events.recordFault(cause)
}

// err returns why the group has ended, or nil. It records the result if it is a fault.
func (l *lifetime) err() error { return l.recordFault(context.Cause(l.ctx)) }

// cause is like err, but first waits for the end of a running inquiry or of ctx.
func (l *lifetime) cause(ctx context.Context) error {
	hasDetectedFault := l.comm.Cause() != nil
	if l.hasEnded() || !hasDetectedFault {
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

// awaitFault replaces err, if it is a fault of this group, by the cause on which the ranks agree.
// It returns other errors unchanged.
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

// isOwnFault reports whether err is a fault of this group. If the group has failed, every PeerError
// counts, because some PeerErrors do not identify their group.
func (l *lifetime) isOwnFault(err error) bool {
	if l.comm.Cause() == nil {
		return false
	}

	return lifetimeOf(err) == l || errors.Is(err, driver.ErrFault)
}

// lifetimeOf returns the lifetime of the group in which the fault err occurred, or nil if err is
// not a fault. For a PriorError, that is the group whose call was skipped.
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

// recordFault makes the group's pools suspect if err is the first fault. Calls must record a fault
// before they return it to the program. The result is err, which may also be nil or an ErrClosed.
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

	l.fault.CompareAndSwap(faultNotReturned, faultReturned) // resolve may have set faultRepaired
	return err
}

func (l *lifetime) detectedFault() error {
	cause := l.comm.Cause()
	isFault := cause != nil && !errors.Is(cause, ErrClosed)
	if !isFault {
		return nil
	}

	return cause
}

// recordDetectedFault records the fault that this rank has detected, and returns false if there is
// none.
func (l *lifetime) recordDetectedFault() bool {
	fault := l.detectedFault()
	if fault == nil {
		return false
	}

	_ = l.recordFault(fault) // returns fault
	return true
}

// abort makes the group fail with ErrAborted, unless it has failed before.
func (l *lifetime) abort() { l.comm.Abort(fmt.Errorf("group %s: %w", l.id, ErrAborted)) }

// resolve records that the ranks have repaired the group's pools. If this rank has not detected the
// fault yet, resolve makes the group fail first.
func (l *lifetime) resolve() {
	l.abort()
	_ = l.recordFault(ErrAborted) // returns ErrAborted
	l.fault.Store(faultRepaired)
}

// failStream is called if a call could not be queued on s because of err, and returns err. After a
// fault, it makes s fail, because later work may need the result of the call.
func (l *lifetime) failStream(s *Stream, err error) error {
	if fault := l.detectedFault(); fault != nil {
		s.queue.Fail(fault)
		_ = l.recordFault(fault) // returns fault
	}

	return err
}

// close ends the group, and reports whether a fault had ended it before.
func (l *lifetime) close() (hadFailed bool) {
	if fault := l.detectedFault(); fault != nil {
		<-l.ctx.Done()           // other ranks may need this rank in the inquiry
		_ = l.recordFault(fault) // returns fault
	}

	hadFailed = l.hasEnded()
	l.state.Lock() // held by functions that start goroutines of the group
	defer l.state.Unlock()
	l.cancel(fmt.Errorf("group %s: %w", l.id, ErrClosed)) // has no effect after a fault
	return hadFailed
}
