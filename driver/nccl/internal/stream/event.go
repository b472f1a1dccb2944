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

// Event marks a point in a stream. An event that has never been recorded counts as done.
type Event struct {
	streams *Streams

	mu    ranked.Mutex[eventMu]
	point *Point // the point recorded last, or nil; guarded by mu
	// shared is set once another event refers to point. The point must then not be recorded again.
	// shared is guarded by mu.
	shared bool
}

// Done reports whether the stream has reached the last recorded point. It also returns true if
// CUDA's query fails.
func (e *Event) Done() bool {
	done, err := e.Query()
	return done || err != nil
}

// Query is like Done, but returns the error if CUDA's query fails.
func (e *Event) Query() (done bool, err error) {
	point := e.Point()
	if point == nil {
		return true, nil
	}
	return point.reached()
}

// Point returns the last recorded point, or nil.
func (e *Event) Point() *Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.point
}

// Synchronize waits until the last recorded point has been reached.
func (e *Event) Synchronize(ctx context.Context) error {
	if err := gpu.PollQuery(ctx, e.Query); err != nil {
		return fmt.Errorf("synchronizing an event: %w", err)
	}
	return nil
}

// Record records the event on a stream. The caller must hold the stream's lock and call Record on a
// thread where the context is current.
func (e *Event) Record(stream cuda.Stream) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	point := e.point
	if point == nil || e.shared {
		if point, err = e.streams.NewPoint(); err != nil {
			return err
		}
	}
	if err := e.streams.GPU.CUDA.EventRecord(point.Handle, stream); err != nil {
		return err
	}
	e.point, e.shared = point, false
	return nil
}

// set makes the event refer to a point that no other event refers to.
func (e *Event) set(point *Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point, e.shared = point, false
}

// share makes the event refer to the point of another event.
func (e *Event) share(other *Event) {
	other.mu.Lock()
	point := other.point
	other.shared = true
	other.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point, e.shared = point, true
}

// RecordAfter returns an event that marks the end of the work queued on s. If s is not adopted,
// RecordAfter records e and returns it. If s is adopted, RecordAfter returns the stream's own
// event, which is recorded again whenever more work is queued. If the caller needs an event that
// keeps marking the same point, it sets fixed. RecordAfter then returns e, which refers to the
// current point of the stream's own event.
//
// RecordAfter is meant for groups that have kernels on the stream. The calling group must hold
// the lock that its RecordEvent method acquires, so that the stream cannot begin a capture or be
// destroyed during the call. RecordAfter must be called on a thread where the context is current.
func (e *Event) RecordAfter(s *Stream, fixed bool) (*Event, error) {
	switch {
	case !s.adopted:
		e.streams = s.streams
		return e, e.Record(s.CUDA)
	case fixed:
		e.streams = s.streams
		e.share(&s.queued)
		return e, nil
	default:
		return &s.queued, nil
	}
}

// StreamWait makes later work of a stream wait for the last recorded point.
func (e *Event) StreamWait(stream cuda.Stream, gpu *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.point == nil {
		return nil
	}
	return gpu.StreamWaitEvent(stream, e.point.Handle)
}

// fixedPoint returns a new point that is reached once the event's current point has been reached.
// It returns nil if the event has no point. A graph must wait for such a new point, because a
// later Record of the event would change what the graph waits for. fixedPoint must be called on a
// thread where the context is current.
func (e *Event) fixedPoint() (*Point, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.point == nil {
		return nil, nil
	}
	return e.streams.NewPointAfter(func(stream cuda.Stream) error {
		return e.streams.GPU.CUDA.StreamWaitEvent(stream, e.point.Handle)
	})
}

// Point wraps a CUDA event. Events have no Close method, so when a Point becomes unreachable, a
// cleanup function returns the CUDA event to the device's pool.
type Point struct {
	// streams owns the pool. Because this field is a pointer, Go does not allocate Points in one
	// block with other tiny objects, which would keep the Points alive.
	streams *Streams
	Handle  cuda.Event
}

// NewPoint returns a point with a CUDA event from the pool. If the pool is empty, it creates a
// new CUDA event.
func (d *Streams) NewPoint() (*Point, error) {
	handle, err := d.pool.take(d)
	if err != nil {
		return nil, fmt.Errorf("creating an event: %w", err)
	}
	p := &Point{d, handle}
	runtime.AddCleanup(p, d.pool.put, handle)
	return p, nil
}

// NewPointAfter creates a temporary stream, calls wait to make that stream wait for some events,
// and returns a new point that is reached after those events. It uses a temporary stream because an
// existing one might be capturing. NewPointAfter must be called on a thread where the context is
// current.
func (d *Streams) NewPointAfter(wait func(stream cuda.Stream) error) (*Point, error) {
	p, err := d.NewPoint()
	if err != nil {
		return nil, err
	}
	temporary, err := d.GPU.CUDA.StreamCreate()
	if err != nil {
		return nil, err
	}
	return p, errors.Join(wait(temporary), d.GPU.CUDA.EventRecord(p.Handle, temporary),
		d.GPU.CUDA.StreamDestroy(temporary)) // CUDA finishes the work of a destroyed stream
}

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

// drain destroys the unused events. Events in use are destroyed with the CUDA context.
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
