package stream

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Event is recorded at a point of a stream. One without a point is done.
type Event struct {
	streams *Streams

	mu     ranked.Mutex[eventMu]
	at     *Point // the last Record's; nil before; guarded by mu
	shared bool   // other events have the point, too, which stays what it is then; guarded by mu
}

// Done reports whether the last recorded point has been reached.
func (e *Event) Done() bool {
	done, err := e.Query()
	return done || err != nil
}

// Query is Done, with the error of CUDA.
func (e *Event) Query() (done bool, err error) {
	at := e.Point()
	if at == nil {
		return true, nil
	}
	return at.reached()
}

// Point is the last recorded one, or nil.
func (e *Event) Point() *Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

// Synchronize waits until the last recorded point has been reached.
func (e *Event) Synchronize(ctx context.Context) error {
	if err := gpu.Ask(ctx, e.Query); err != nil {
		return fmt.Errorf("synchronizing an event: %w", err)
	}
	return nil
}

// Record records the event on a stream. The stream's lock is held. It is called on a thread
// of the context.
func (e *Event) Record(on cuda.Stream) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.at
	if at == nil || e.shared {
		if at, err = e.streams.NewPoint(); err != nil {
			return err
		}
	}
	if err := e.streams.GPU.CUDA.EventRecord(at.Handle, on); err != nil {
		return err
	}
	e.at, e.shared = at, false
	return nil
}

// set replaces the point of the event. No other event may be recording it.
func (e *Event) set(at *Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.shared = at, false
}

// share makes the point of another event that of both.
func (e *Event) share(from *Event) {
	from.mu.Lock()
	at := from.at
	from.shared = true
	from.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.shared = at, true
}

// StreamWait makes later work of a stream wait for the event's point.
func (e *Event) StreamWait(on cuda.Stream, gpu *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == nil {
		return nil
	}
	return gpu.StreamWaitEvent(on, e.at.Handle)
}

// Point is a CUDA event. It goes back to the device when no event has it any more, since events
// have no Close.
type Point struct {
	// streams also keeps Go from putting points next to other small things, and alive with them.
	streams *Streams
	Handle  cuda.Event
}

// NewPoint returns an unused point, or makes one.
func (d *Streams) NewPoint() (*Point, error) {
	handle, err := d.pool.take(d)
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	p := &Point{d, handle}
	runtime.AddCleanup(p, d.pool.put, handle)
	return p, nil
}

// PointBehind is a new point that is recorded once, behind what wait has a stream wait for: on a
// stream that does nothing else, since others may be captured. It is called on a thread of the
// context.
func (d *Streams) PointBehind(wait func(on cuda.Stream) error) (*Point, error) {
	p, err := d.NewPoint()
	if err != nil {
		return nil, err
	}
	aside, err := d.GPU.CUDA.StreamCreate()
	if err != nil {
		return nil, err
	}
	return p, errors.Join(wait(aside), d.GPU.CUDA.EventRecord(p.Handle, aside),
		d.GPU.CUDA.StreamDestroy(aside)) // which lets its work finish
}

// reached reports whether the stream has come to the point.
func (p *Point) reached() (done bool, err error) {
	err = p.streams.GPU.With(func(gpu *cuda.Driver) error {
		done, err = gpu.EventQuery(p.Handle)
		return err
	})
	runtime.KeepAlive(p)
	p.streams.Order.Load()
	return done, err
}

// pool holds unused CUDA events.
type pool struct {
	mu   ranked.Mutex[poolMu]
	free []cuda.Event // guarded by mu
}

func (p *pool) take(d *Streams) (cuda.Event, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		handle := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return handle, nil
	}
	p.mu.Unlock()
	return gpu.Get(d.GPU, func() (cuda.Event, error) {
		return d.GPU.CUDA.EventCreate(cuda.EventDisableTiming)
	})
}

func (p *pool) put(handle cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, handle)
}

// drain destroys the unused events. Events in use end with the context.
func (p *pool) drain(driver *cuda.Driver) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, handle := range p.free {
		errs = append(errs, driver.EventDestroy(handle))
	}
	p.free = nil
	return errors.Join(errs...)
}
