package host

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// event marks a point: a position in a stream's work. For example, the event is recorded after a
// copy. The stream reaches this point after the copy. If the event is recorded again, it marks only
// the new point.
type event struct {
	mu        ranked.Mutex[eventMu]
	lastPoint *point // nil before the first Record; guarded by mu
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

// point implements work, which streams queue. A stream reaches the point when it runs or skips this
// work. A stream skips work if earlier work has failed.
type point struct {
	// lazy is a Recv before the point that no worker goroutine runs. The first caller that waits for
	// the point receives its message. lazy is nil if there is no such Recv.
	lazy    *lazyRecv
	reached chan struct{} // closed when the stream reaches the point
	err     error         // error of earlier work; set before reached is closed
}

func (p *point) isReached() bool {
	select {
	case <-p.reached:
		return true
	default:
		return false
	}
}

// run implements work.
func (p *point) run() error {
	close(p.reached)
	return nil
}

// skip implements work. cause is the error of the earlier work that failed.
func (p *point) skip(cause error) {
	p.err = cause
	close(p.reached)
}

// Done reports whether the last recorded point has been reached. An event that has never been
// recorded counts as done.
func (e *event) Done() bool {
	p := e.getLastPoint()
	return p == nil || p.isReached()
}

// Synchronize waits for the last recorded point, and returns the error of the work before it.
func (e *event) Synchronize(ctx context.Context) error {
	p := e.getLastPoint()
	if p == nil {
		return nil
	}

	if p.lazy != nil && !p.isReached() {
		p.lazy.wait(ctx) // receives the message on this thread
	}

	select {
	case <-p.reached:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("synchronizing an event: %w", context.Cause(ctx))
	}
}

// Record records an event after all queued work. It is allowed on a closed stream while earlier
// work is queued.
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

	p := &point{reached: make(chan struct{})}
	if isIdle {
		s.runOrSkip(p)
	} else {
		const inline = false
		p.lazy = s.lazy
		s.enqueue(p, inline)
	}

	hostEvent.setLastPoint(p)
	return nil
}

// Wait delays later work of the stream until the last recorded point has been reached.
func (s *stream) Wait(e driver.Event) error {
	const ignoreErrors = false
	return s.waitForEvent(e, ignoreErrors)
}

// WaitIgnoringErrors is like Wait, but ignores the error of the work before the point.
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
		// There is nothing to wait for, but submit returns the errors of a closed stream.
		return s.submit(hostWork(func() {}), alwaysReady)
	}

	if p.lazy != nil && !p.isReached() {
		p.lazy.stopWaiting() // starts a worker for the Recv, because this thread must not wait
	}

	return s.submit(&eventWait{point: p, ignoreErrors: ignoreErrors}, p.isReached)
}

// eventWait is the work of a Wait or a WaitIgnoringErrors.
type eventWait struct {
	point        *point
	ignoreErrors bool // the stream does not fail with the error of the work before the point
}

// run implements work.
func (w *eventWait) run() error {
	<-w.point.reached
	if w.ignoreErrors {
		return nil
	}

	return w.point.err
}

// skip implements work.
func (w *eventWait) skip(error) {}
