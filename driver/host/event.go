package host

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// point is a marker in the queue of a stream. The stream reaches it after all earlier work.
type point struct {
	pendingRecv *lazyRecv     // earlier Recv that may have no worker, or nil
	reached     chan struct{} // closed when the stream reaches the point
	err         error         // error of earlier work; valid once reached is closed
}

func (p *point) isReached() bool {
	select {
	case <-p.reached:
		return true
	default:
		return false
	}
}

func (p *point) run() error {
	close(p.reached)
	return nil
}

// skip replaces run if earlier work has failed.
func (p *point) skip(cause error) {
	p.err = cause
	close(p.reached)
}

// event marks the point in a stream at which it was last recorded.
type event struct {
	mu        ranked.Mutex[eventMu]
	lastPoint *point // nil before the first Record; guarded by mu
}

// Done reports whether the stream has reached the event. An event is done before the first Record.
func (e *event) Done() bool {
	p := e.getLastPoint()
	return p == nil || p.isReached()
}

// Synchronize waits until the stream reaches the event, and returns the error of earlier work.
func (e *event) Synchronize(ctx context.Context) error {
	p := e.getLastPoint()
	if p == nil {
		return nil
	}

	if p.pendingRecv != nil && !p.isReached() {
		p.pendingRecv.receive(ctx)
	}

	select {
	case <-p.reached:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("synchronizing an event: %w", context.Cause(ctx))
	}
}

func (e *event) getLastPoint() *point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastPoint
}

func (e *event) setLastPoint(p *point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastPoint = p
}

// Record records an event after all queued work. It returns ErrClosed if s is closed and idle.
func (s *stream) Record(e driver.Event) error {
	hostEvent, ok := e.(*event)
	if !ok {
		return errors.New("the event to record belongs to another backend")
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	isIdle := s.busyPeriod == nil
	if isIdle {
		if err := s.checkOpen(); err != nil {
			return err
		}
	}

	if s.capture != nil {
		s.capture.addReplay(func(target *stream) error { return target.Record(hostEvent) })
		return nil
	}

	p := &point{pendingRecv: s.lazy, reached: make(chan struct{})}
	if isIdle {
		s.runOrSkip(p)
	} else {
		s.queue = append(s.queue, p) // unlike enqueue, does not start a worker for a lazy Recv
	}

	hostEvent.setLastPoint(p)
	return nil
}

// Wait delays later work of s until e is done. If work before e has failed, s also fails.
func (s *stream) Wait(e driver.Event) error {
	const ignoreErrors = false
	return s.waitForEvent(e, ignoreErrors)
}

// WaitIgnoringErrors is like Wait, but errors of work before e do not make s fail.
func (s *stream) WaitIgnoringErrors(e driver.Event) error {
	const ignoreErrors = true
	return s.waitForEvent(e, ignoreErrors)
}

func (s *stream) waitForEvent(e driver.Event, ignoreErrors bool) error {
	hostEvent, ok := e.(*event)
	if !ok {
		return errors.New("the event to wait for belongs to another backend")
	}

	p := hostEvent.getLastPoint()
	if p == nil {
		noWork := hostWork(func() {})
		return s.submit(noWork, alwaysReady) // returns an error if s is closed
	}

	if p.pendingRecv != nil && !p.isReached() {
		p.pendingRecv.startWorker()
	}

	return s.submit(&eventWait{point: p, ignoreErrors: ignoreErrors}, p.isReached)
}

type eventWait struct {
	point        *point
	ignoreErrors bool
}

func (w *eventWait) run() error {
	<-w.point.reached
	if w.ignoreErrors {
		return nil
	}

	return w.point.err
}

func (w *eventWait) skip(error) {}
