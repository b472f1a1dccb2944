package nccl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// event marks a point in a stream. The zero value with a device is ready, and done.
type event struct {
	device *Device

	mu     ranked.Mutex[eventMu]
	at     *point // the last Record's; nil before; guarded by mu
	shared bool   // other events have the point, too, which stays what it is then; guarded by mu
}

// point is a CUDA event. It goes back to the device when no event has it any more, since events
// have no Close.
type point struct {
	device *Device // also keeps Go from putting points next to other small things, and alive with them
	handle cuda.Event
}

// NewEvent makes an event.
func (d *Device) NewEvent() (driver.Event, error) { return d.newEvent(), nil }

func (d *Device) newEvent() *event { return &event{device: d} }

func (d *Device) newPoint() (*point, error) {
	handle, err := d.events.take(d)
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	p := &point{d, handle}
	runtime.AddCleanup(p, d.events.put, handle)
	return p, nil
}

// eventPool keeps CUDA events that nobody uses.
type eventPool struct {
	mu   ranked.Mutex[eventPoolMu]
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
	at := e.point()
	if at == nil {
		return true, nil
	}
	return at.reached()
}

// point is the last recorded one, or nil.
func (e *event) point() *point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

// reached reports whether the stream has come to the point.
func (p *point) reached() (done bool, err error) {
	err = p.device.with(func(gpu *cuda.Driver) error {
		done, err = gpu.EventQuery(p.handle)
		return err
	})
	runtime.KeepAlive(p)
	p.device.order.Load()
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

// record marks the event's point on a stream. The stream's lock is held. It is called on a thread
// of the device.
func (e *event) record(on *stream) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.at
	if at == nil || e.shared {
		if at, err = e.device.newPoint(); err != nil {
			return err
		}
	}
	if err := e.device.cuda.EventRecord(at.handle, on.handle); err != nil {
		return err
	}
	e.at, e.shared = at, false
	return nil
}

// set makes a point the event's. Nobody else records it.
func (e *event) set(at *point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.shared = at, false
}

// take makes the point of another event that of both.
func (e *event) take(from *event) {
	from.mu.Lock()
	at := from.at
	from.shared = true
	from.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.shared = at, true
}

// holdUp makes later work of a stream wait for the event's point.
func (e *event) holdUp(on cuda.Stream, gpu *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == nil {
		return nil
	}
	return gpu.StreamWaitEvent(on, e.at.handle)
}

// Record marks the event's point. In a capture it does so for each launch of the graph, after all
// of the graph's work: so the graph has no node for it.
// On a stream that its owner captures the point is behind what the stream was given here before.
func (s *stream) Record(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok || ev.device != s.device {
		return errors.New("recording an event: it is of another device")
	}
	return s.submit(func() error {
		switch {
		case s.capture != nil:
			s.capture.events = append(s.capture.events, ev)
			return nil
		case s.adopted:
			_, err := s.overtake()
			ev.take(&s.behind)
			return err
		default:
			return ev.record(s)
		}
	})
}

// WaitOnly is Wait: CUDA's events carry no failure.
func (s *stream) WaitOnly(e driver.Event) error { return s.Wait(e) }

// Wait makes later work wait for the event's point.
func (s *stream) Wait(e driver.Event) error {
	ev, ok := e.(*event)
	if !ok || ev.device != s.device {
		return errors.New("waiting for an event: it is of another device")
	}
	return s.give(func() error {
		if s.capture != nil || s.recording {
			return s.waitCaptured(ev)
		}
		return ev.holdUp(s.handle, s.device.cuda)
	})
}

// waitCaptured records a wait for the point that the event marks now. A graph would wait for the
// event's last point at each launch, so the wait is for a second event, recorded once, behind that
// point, on a stream that does nothing else.
func (s *stream) waitCaptured(ev *event) error {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if ev.at == nil {
		return nil
	}
	d := s.device
	point, err := d.newPoint()
	if err != nil {
		return err
	}
	aside, err := d.cuda.StreamCreate(true)
	if err != nil {
		return err
	}
	err = errors.Join(
		d.cuda.StreamWaitEvent(aside, ev.at.handle),
		d.cuda.EventRecord(point.handle, aside),
		d.cuda.StreamDestroy(aside)) // which lets its work finish
	if err != nil {
		return err
	}
	if s.capture != nil {
		s.capture.points = append(s.capture.points, point)
	} else {
		if err := s.keepInCapture(point); err != nil {
			return err
		}
	}
	return d.cuda.StreamWaitEventExternal(s.handle, point.handle)
}
