package host

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"symmem/driver"
)

// event marks a point in a stream. Each Record makes a new point; what waits for the event waits
// for the point that was the last when the wait was queued.
type event struct {
	device *Device
	mu     sync.Mutex
	point  chan struct{} // closed when reached; guarded by mu; nil if never recorded
}

// NewEvent makes an event.
func (d *Device) NewEvent() (driver.Event, error) { return &event{device: d}, nil }

func (e *event) last() chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.point
}

// Done reports whether the last recorded point has been reached.
func (e *event) Done() bool {
	point := e.last()
	if point == nil {
		return true
	}
	select {
	case <-point:
		return true
	default:
		return false
	}
}

// Synchronize waits until the last recorded point has been reached.
func (e *event) Synchronize(ctx context.Context) error {
	point := e.last()
	if point == nil {
		return nil
	}
	select {
	case <-point:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("synchronizing an event: %w", context.Cause(ctx))
	}
}

// set makes a point the last recorded one.
func (e *event) set(point chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point = point
}

// mark is a captured Record. Launch records the event anew instead of running it.
type mark struct{ event *event }

func (m mark) run() error { return errors.New("a captured Record was queued") }

// reached is a point whose turn in the stream has come.
type reached struct{ point chan struct{} }

func (r *reached) run() error {
	close(r.point)
	return nil
}

// Record marks the event's point.
func (s *stream) Record(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("recording an event: it is of another backend")
	}
	if s.Capturing() {
		return s.submit(mark{ev}, false)
	}
	r := &reached{point: make(chan struct{})}
	if err := s.submit(r, true); err != nil {
		return err
	}
	ev.set(r.point)
	return nil
}

// hold is the work of a Wait: it keeps a stream until a point is reached.
type hold struct {
	device *Device
	point  chan struct{}
}

func (h *hold) run() error {
	select {
	case <-h.point:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.device.cfg.Timeout)
	defer cancel()
	select {
	case <-h.point:
		return nil
	case <-ctx.Done():
		return &driver.TimeoutError{
			Doing: "waiting for an event of another stream", Waited: h.device.cfg.Timeout,
		}
	}
}

// Wait makes later work wait for the event's point.
func (s *stream) Wait(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok {
		return errors.New("waiting for an event: it is of another backend")
	}
	point := ev.last()
	if point == nil {
		return s.submit(hostWork(func() {}), true)
	}
	return s.submit(&hold{device: s.device, point: point}, ev.Done())
}
