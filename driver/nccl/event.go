package nccl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
)

// event marks a point in a stream: one CUDA event, which remembers its last Record.
type event struct {
	device *Device
	handle cuda.Event

	mu       sync.Mutex
	recorded bool // guarded by mu
}

// NewEvent makes an event. Its CUDA event goes back to the device when nobody holds the event any
// more, since events have no Close.
func (d *Device) NewEvent() (driver.Event, error) { return d.newEvent() }

func (d *Device) newEvent() (*event, error) {
	handle, err := d.events.take(d)
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	e := &event{device: d, handle: handle}
	runtime.AddCleanup(e, d.events.put, handle)
	return e, nil
}

// eventPool keeps CUDA events that nobody uses.
type eventPool struct {
	mu   sync.Mutex
	free []cuda.Event // guarded by mu
}

func (p *eventPool) take(d *Device) (cuda.Event, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		handle := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return handle, nil
	}
	p.mu.Unlock()
	var handle cuda.Event
	err := d.do(func() (err error) {
		handle, err = d.cuda.EventCreate(cuda.EventDisableTiming)
		return err
	})
	return handle, err
}

func (p *eventPool) put(handle cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, handle)
}

// drain destroys the events that nobody uses. Those that are still held end with the context.
func (p *eventPool) drain(driver *cuda.Driver) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, handle := range p.free {
		errs = append(errs, driver.EventDestroy(handle))
	}
	p.free = nil
	return errors.Join(errs...)
}

// Done reports whether the last recorded point has been reached.
func (e *event) Done() bool {
	done, err := e.query()
	return done || err != nil
}

func (e *event) query() (done bool, err error) {
	e.mu.Lock()
	recorded := e.recorded
	e.mu.Unlock()
	if !recorded {
		return true, nil
	}
	err = e.device.with(func(gpu *cuda.Driver) error {
		done, err = gpu.EventQuery(e.handle)
		return err
	})
	e.device.order.Load()
	return done, err
}

// Synchronize waits until the last recorded point has been reached.
func (e *event) Synchronize(ctx context.Context) error {
	var failed error
	err := poll(ctx, func() bool {
		done, err := e.query()
		failed = err
		return done || err != nil
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("synchronizing an event: %w", err)
	}
	return nil
}

// A wait for the GPU spins as long as a small collective takes, then gives way, then sleeps.
const (
	spinFor  = 50 * time.Microsecond
	yieldFor = 500 * time.Microsecond
	nap      = 50 * time.Microsecond
)

// poll waits until done returns true or ctx ends.
func poll(ctx context.Context, done func() bool) error {
	for begin := time.Now(); ; {
		if done() {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch waited := time.Since(begin); {
		case waited < spinFor:
		case waited < yieldFor:
			runtime.Gosched()
		default:
			time.Sleep(nap)
		}
	}
}

// within asks again and again until the answer is yes, an error, or too late.
func (d *Device) within(limit time.Duration, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var failed error
	err := poll(ctx, func() bool {
		done, err := ask()
		failed = err
		return done || err != nil
	})
	return errors.Join(err, failed)
}

// record marks the event's point on a stream. The stream's lock is held.
func (e *event) record(on *stream) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.device.cuda.EventRecord(e.handle, on.handle)
	e.recorded = e.recorded || err == nil
	return err
}

// Record marks the event's point. In a capture it does so for each launch of the graph, after all
// of the graph's work: an event that CUDA records inside a graph would count as reached until then.
func (s *stream) Record(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok || ev.device != s.device {
		return errors.New("recording an event: it is of another device")
	}
	return s.submit(func() error {
		if s.capture != nil {
			s.capture.events = append(s.capture.events, ev)
			return nil
		}
		return ev.record(s)
	})
}

// Wait makes later work wait for the event's point.
func (s *stream) Wait(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok || ev.device != s.device {
		return errors.New("waiting for an event: it is of another device")
	}
	return s.submit(func() error {
		ev.mu.Lock()
		defer ev.mu.Unlock()
		if !ev.recorded {
			return nil
		}
		if s.capture != nil {
			return s.waitCaptured(ev)
		}
		return s.device.cuda.StreamWaitEvent(s.handle, ev.handle)
	})
}

// waitCaptured records a wait for the point that the event marks now. A graph would wait for the
// event's last point at each launch, so the wait is for a second event, recorded once, behind that
// point, on a stream that does nothing else. ev.mu is held.
func (s *stream) waitCaptured(ev *event) error {
	d := s.device
	point, err := d.newEvent()
	if err != nil {
		return err
	}
	aside, err := d.cuda.StreamCreate(true)
	if err != nil {
		return err
	}
	err = errors.Join(
		d.cuda.StreamWaitEvent(aside, ev.handle),
		d.cuda.EventRecord(point.handle, aside),
		d.cuda.StreamDestroy(aside)) // which lets its work finish
	if err != nil {
		return err
	}
	s.capture.points = append(s.capture.points, point)
	return d.cuda.StreamWaitEventExternal(s.handle, point.handle)
}
