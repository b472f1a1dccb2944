package host

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// event holds the point that its last Record marked in a stream's work.
type event struct {
	mu        ranked.Mutex[eventMu]
	lastPoint *point // nil before the first Record; guarded by mu
}

// point is a position in a stream's work.
type point struct {
	reachedChannel chan struct{} // closed when the stream reaches the point
	err            error         // error of earlier work; set before reachedChannel is closed
}

func (p *point) isReached() bool {
	select {
	case <-p.reachedChannel:
		return true
	default:
		return false
	}
}

func (e *event) getLastPoint() *point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lastPoint
}

// Done reports whether the last recorded point has been reached.
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
	select {
	case <-p.reachedChannel:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("synchronizing an event: %w", context.Cause(ctx))
	}
}

func (e *event) setPoint(p *point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastPoint = p
}

func (p *point) run() error {
	close(p.reachedChannel)
	return nil
}

func (p *point) skip(cause error) {
	p.err = cause
	close(p.reachedChannel)
}

// Record records the event. On a closed stream, this fails unless earlier work is still queued.
func (s *stream) Record(e driver.Event) error {
	hostEvent, ok := e.(*event)
	if !ok {
		return errors.New("recording an event: it belongs to another backend")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil {
		if err := s.checkOpen(); err != nil {
			return err
		}
	}
	if s.capture != nil {
		s.capture.addStep(func(on *stream) error { return on.Record(hostEvent) })
		return nil
	}
	p := &point{reachedChannel: make(chan struct{})}
	if s.busy == nil {
		s.runOrSkip(p)
	} else {
		s.enqueue(p, false)
	}
	hostEvent.setPoint(p)
	return nil
}

type eventWait struct {
	point          *point
	ignoresFailure bool
}

func (w *eventWait) run() error {
	<-w.point.reachedChannel
	if w.ignoresFailure {
		return nil
	}
	return w.point.err
}

func (w *eventWait) skip(error) {}

// Wait makes later work wait for the event. If the work before the event has failed, this stream
// fails too.
func (s *stream) Wait(e driver.Event) error { return s.waitForEvent(e, false) }

// WaitIgnoringErrors is like Wait, but ignores errors of the work before the event.
func (s *stream) WaitIgnoringErrors(e driver.Event) error { return s.waitForEvent(e, true) }

func (s *stream) waitForEvent(e driver.Event, ignoresFailure bool) error {
	hostEvent, ok := e.(*event)
	if !ok {
		return errors.New("waiting for an event: it belongs to another backend")
	}
	p := hostEvent.getLastPoint()
	if p == nil {
		return s.submit(hostWork(func() {}), alwaysReady)
	}
	return s.submit(&eventWait{point: p, ignoresFailure: ignoresFailure}, p.isReached)
}
