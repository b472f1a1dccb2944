package host

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// event holds the point of its last Record. A wait for the event is a wait for the point that was
// the last one when the wait was queued.
type event struct {
	mu ranked.Mutex[eventMu]
	at *point // nil before the first Record; guarded by mu
}

// point marks a position in the work of a stream.
type point struct {
	reached chan struct{} // closed when the stream reaches the point
	err     error         // the failure of the work before the point; set before reached is closed
}

func (p *point) isReached() bool {
	select {
	case <-p.reached:
		return true
	default:
		return false
	}
}

func (e *event) last() *point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

// Done reports whether the last recorded point has been reached.
func (e *event) Done() bool {
	at := e.last()
	return at == nil || at.isReached()
}

// Synchronize waits until the last recorded point has been reached, and returns the failure of the
// work before it.
func (e *event) Synchronize(ctx context.Context) error {
	at := e.last()
	if at == nil {
		return nil
	}
	select {
	case <-at.reached:
		return at.err
	case <-ctx.Done():
		return fmt.Errorf("synchronizing an event: %w", context.Cause(ctx))
	}
}

func (e *event) set(at *point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = at
}

// run marks the point as reached.
func (p *point) run() error {
	close(p.reached)
	return nil
}

// skip marks the point as reached after a failure.
func (p *point) skip(cause error) {
	p.err = cause
	close(p.reached)
}

// Record records the event. A closed stream accepts it only while earlier work is still queued.
func (s *stream) Record(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("recording an event: it belongs to another backend")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == nil {
		if err := s.usable(); err != nil {
			return err
		}
	}
	if s.capture != nil {
		s.capture.add(func(on *stream) error { return on.Record(ev) })
		return nil
	}
	at := &point{reached: make(chan struct{})}
	if s.idle == nil {
		s.do(at)
	} else {
		s.enqueue(at, false)
	}
	ev.set(at)
	return nil
}

// waitWork makes a stream wait for a point. There is no deadline, because only this rank's work
// precedes the point.
type waitWork struct {
	at *point
	// ignoreFailure makes a failure before the point not fail the stream.
	ignoreFailure bool
}

func (h *waitWork) run() error {
	<-h.at.reached
	if h.ignoreFailure {
		return nil
	}
	return h.at.err
}

func (h *waitWork) skip(error) {}

// Wait makes later work wait for the event, and fail if the work before the event has failed.
func (s *stream) Wait(e driver.Event) error { return s.await(e, false) }

// WaitOnly makes later work wait for the event, even if the work before the event has failed.
func (s *stream) WaitOnly(e driver.Event) error { return s.await(e, true) }

// await queues a wait for the last recorded point of an event.
func (s *stream) await(e driver.Event, ignoreFailure bool) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("waiting for an event: it belongs to another backend")
	}
	at := ev.last()
	if at == nil {
		return s.submit(hostWork(func() {}), always)
	}
	return s.submit(&waitWork{at: at, ignoreFailure: ignoreFailure}, at.isReached)
}
