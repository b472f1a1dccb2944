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

	mu       ranked.Mutex[eventMu]
	point    *Point // last recorded point, or nil; guarded by mu
	isShared bool   // whether another event uses the point; guarded by mu
}

// Done reports whether the stream has reached the last recorded point or the device has failed.
func (e *Event) Done() bool { return hasEnded(e.Query()) }

// hasEnded reports whether the work of a query has ended, by the results of the query. After an
// error of the device, no work is running. If a capture forbids the query, work may be running.
func hasEnded(done bool, err error) bool {
	isDeviceError := err != nil && !errors.Is(err, cuda.ErrCaptureUnsupported)
	return done || isDeviceError
}

// Query reports whether the stream has reached the last recorded point.
func (e *Event) Query() (done bool, err error) {
	point := e.Point()
	if point == nil {
		return true, nil
	}
	return point.isReached()
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

// Record records the event on a stream. The caller must hold the stream's lock, and the CUDA
// context must be current.
func (e *Event) Record(stream cuda.Stream) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	point := e.point
	if point == nil || e.isShared {
		if point, err = e.streams.NewPoint(); err != nil {
			return err
		}
	}
	if err := e.streams.GPU.CUDA.EventRecord(point.Handle, stream); err != nil {
		return err
	}
	e.point, e.isShared = point, false
	return nil
}

func (e *Event) setPoint(point *Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point, e.isShared = point, false
}

// sharePoint makes e use the last recorded point of another event.
func (e *Event) sharePoint(other *Event) {
	other.mu.Lock()
	point := other.point
	other.isShared = true
	other.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point, e.isShared = point, true
}

// RecordAfter returns an event that marks the end of the work queued on s. The event is e, unless
// another library owns s and keepPoint is false. In that case, it is s.queuedEnd, which later work
// moves. The calling group must hold the lock that its RecordEvent method acquires, so that the
// stream cannot begin a capture or be destroyed. The CUDA context must be current.
func (e *Event) RecordAfter(s *Stream, keepPoint bool) (*Event, error) {
	switch {
	case !s.isAdopted:
		e.streams = s.streams
		return e, e.Record(s.CUDA)
	case keepPoint:
		e.streams = s.streams
		e.sharePoint(&s.queuedEnd)
		return e, nil
	default:
		return &s.queuedEnd, nil
	}
}

// StreamWait makes later work of a stream wait for the last recorded point.
func (e *Event) StreamWait(stream cuda.Stream, api *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.point == nil {
		return nil
	}
	return api.StreamWaitEvent(stream, e.point.Handle)
}

// newFixedPoint returns a new point that follows the event's current point, or nil if the event
// has none. A graph waits for the new point, because a later Record can move the current one. The
// CUDA context must be current.
func (e *Event) newFixedPoint() (*Point, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.point == nil {
		return nil, nil
	}
	return e.streams.NewPointAfter(func(stream cuda.Stream) error {
		return e.streams.GPU.CUDA.StreamWaitEvent(stream, e.point.Handle)
	})
}

// Point is a CUDA event, which returns to a pool once the Point is unreachable.
type Point struct {
	// streams must be a pointer: Go allocates small objects without pointers in common blocks,
	// which would keep the Point alive.
	streams *Streams
	Handle  cuda.Event
}

// NewPoint returns a point that has not been recorded.
func (streams *Streams) NewPoint() (*Point, error) {
	handle, err := streams.pool.take(streams)
	if err != nil {
		return nil, fmt.Errorf("creating an event: %w", err)
	}
	p := &Point{streams, handle}
	runtime.AddCleanup(p, streams.pool.put, handle)
	return p, nil
}

// NewPointAfter returns a point that follows the events for which wait makes a stream wait. It
// uses a new stream, because an existing one might be capturing. The CUDA context must be current.
func (streams *Streams) NewPointAfter(wait func(stream cuda.Stream) error) (*Point, error) {
	p, err := streams.NewPoint()
	if err != nil {
		return nil, err
	}
	temporary, err := streams.GPU.CUDA.StreamCreate()
	if err != nil {
		return nil, err
	}
	return p, errors.Join(wait(temporary), streams.GPU.CUDA.EventRecord(p.Handle, temporary),
		streams.GPU.CUDA.StreamDestroy(temporary)) // CUDA completes the stream's work first
}

func (p *Point) isReached() (done bool, err error) {
	err = p.streams.GPU.Query(func(api *cuda.Driver) error {
		done, err = api.EventQuery(p.Handle)
		return err
	})
	runtime.KeepAlive(p)
	p.streams.HappensBefore.Load()
	return done, err
}

type eventPool struct {
	mu     ranked.Mutex[poolMu]
	unused []cuda.Event // guarded by mu
}

func (p *eventPool) take(streams *Streams) (cuda.Event, error) {
	p.mu.Lock()
	if n := len(p.unused); n > 0 {
		handle := p.unused[n-1]
		p.unused = p.unused[:n-1]
		p.mu.Unlock()
		return handle, nil
	}
	p.mu.Unlock()
	return gpu.Get(streams.GPU, func() (cuda.Event, error) {
		return streams.GPU.CUDA.EventCreate(cuda.EventDisableTiming)
	})
}

func (p *eventPool) put(handle cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unused = append(p.unused, handle)
}

func (p *eventPool) destroyAll(driver *cuda.Driver) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, handle := range p.unused {
		errs = append(errs, driver.EventDestroy(handle))
	}
	p.unused = nil
	return errors.Join(errs...)
}
