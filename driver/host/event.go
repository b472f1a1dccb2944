package host

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// event is recorded at a point of a stream. Each Record makes a new point; what waits for the event
// waits for the point that was the last when the wait was queued.
type event struct {
	mu ranked.Mutex[eventMu]
	at *point // guarded by mu; nil if never recorded
}

// point is a place in a stream's work.
type point struct {
	reached chan struct{} // closed when the stream gets there
	err     error         // the stream's failure then; written before reached is closed
}

// isReached reports whether the stream got there.
func (p *point) isReached() bool {
	select {
	case <-p.reached:
		return true
	default:
		return false
	}
}

// NewEvent makes an event.
func (d *Device) NewEvent() (driver.Event, error) { return &event{}, nil }

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

// set makes a point the last recorded one.
func (e *event) set(at *point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = at
}

// run and skip make a point the work of a Record.
func (p *point) run() error {
	close(p.reached)
	return nil
}

func (p *point) skip(cause error) {
	p.err = cause
	close(p.reached)
}

// Record records the event, also on a stream that is closed and has work still.
func (s *stream) Record(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("recording an event: it is of another backend")
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
		s.enqueue(at)
	}
	ev.set(at)
	return nil
}

// waitWork is the work of a Wait: it keeps a stream until a point is reached. That is this rank's
// own work, so there is no deadline.
type waitWork struct {
	at *point
	// only reports whether the failure of the work before the point is ignored.
	only bool
}

func (h *waitWork) run() error {
	<-h.at.reached
	if h.only {
		return nil
	}
	return h.at.err
}

func (h *waitWork) skip(error) {}

// Wait makes later work wait for the event's point, and fail if the work before it has.
func (s *stream) Wait(e driver.Event) error { return s.await(e, false) }

// WaitOnly makes later work wait for the event's point.
func (s *stream) WaitOnly(e driver.Event) error { return s.await(e, true) }

func (s *stream) await(e driver.Event, only bool) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("waiting for an event: it is of another backend")
	}
	at := ev.last()
	if at == nil {
		return s.submit(hostWork(func() {}), always)
	}
	return s.submit(&waitWork{at: at, only: only}, at.isReached)
}
