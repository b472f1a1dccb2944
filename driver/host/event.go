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
	mu     ranked.Mutex[eventMu]
	latest *point // nil before the first Record; guarded by mu
}

type point struct {
	reached chan struct{} // closed when the stream reaches the point
	err     error         // the failure of earlier work; set before reached is closed
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
	return e.latest
}

// Done reports whether the last recorded point has been reached.
func (e *event) Done() bool {
	p := e.last()
	return p == nil || p.isReached()
}

// Synchronize waits for the last recorded point, and returns the failure of the work before it.
func (e *event) Synchronize(ctx context.Context) error {
	p := e.last()
	if p == nil {
		return nil
	}
	select {
	case <-p.reached:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("synchronizing an event: %w", context.Cause(ctx))
	}
}

func (e *event) set(p *point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = p
}

func (p *point) run() error {
	close(p.reached)
	return nil
}

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
	if s.busy == nil {
		if err := s.checkOpen(); err != nil {
			return err
		}
	}
	if s.capture != nil {
		s.capture.add(func(on *stream) error { return on.Record(ev) })
		return nil
	}
	p := &point{reached: make(chan struct{})}
	if s.busy == nil {
		s.do(p)
	} else {
		s.enqueue(p, false)
	}
	ev.set(p)
	return nil
}

type waitWork struct {
	point         *point
	ignoreFailure bool
}

func (w *waitWork) run() error {
	<-w.point.reached
	if w.ignoreFailure {
		return nil
	}
	return w.point.err
}

func (w *waitWork) skip(error) {}

// Wait makes later work wait for the event. If the work before the event has failed, this stream
// fails too.
func (s *stream) Wait(e driver.Event) error { return s.await(e, false) }

// WaitOnly is like Wait, but ignores a failure of the work before the event.
func (s *stream) WaitOnly(e driver.Event) error { return s.await(e, true) }

func (s *stream) await(e driver.Event, ignoreFailure bool) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("waiting for an event: it belongs to another backend")
	}
	p := ev.last()
	if p == nil {
		return s.submit(hostWork(func() {}), always)
	}
	return s.submit(&waitWork{point: p, ignoreFailure: ignoreFailure}, p.isReached)
}
