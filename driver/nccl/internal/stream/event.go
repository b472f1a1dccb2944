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

// A CUDA event marks a position in the work of a stream. For example, it is recorded after kernel
// 1. The stream reaches the position when kernel 1 has ended. If the CUDA event is recorded again
// after kernel 2, it moves there.
//
// A Point owns a CUDA event. An Event has a point, and moves it when the Event is recorded again.
// But two Events can share a point. If one of them is recorded again, it takes a new point, so that
// the other one keeps its position.

// Point owns a CUDA event. Once the garbage collector finds that the Point is unreachable, the CUDA
// event goes to a pool for reuse.
type Point struct {
	// A Point must contain a pointer. Go allocates several small objects without pointers in one
	// block, and each of them would keep the others reachable.
	streams *Streams
	Handle  cuda.Event
}

// NewPoint returns a point that has not been recorded.
func (streams *Streams) NewPoint() (*Point, error) {
	handle, err := streams.pool.take(streams)
	if err != nil {
		return nil, fmt.Errorf("creating an event: %w", err)
	}

	p := &Point{streams: streams, Handle: handle}
	runtime.AddCleanup(p, streams.pool.put, handle)
	return p, nil
}

// NewPointAfter calls wait, which makes a stream wait for events, and returns a point that has been
// recorded after these waits. It uses a new stream, because an existing one might be capturing. The
// CUDA context must be current.
func (streams *Streams) NewPointAfter(wait func(stream cuda.Stream) error) (*Point, error) {
	p, err := streams.NewPoint()
	if err != nil {
		return nil, err
	}

	temporary, err := streams.GPU.CUDA.StreamCreate()
	if err != nil {
		return nil, err
	}

	waitErr := wait(temporary)
	recordErr := streams.GPU.CUDA.EventRecord(p.Handle, temporary)
	destroyErr := streams.GPU.CUDA.StreamDestroy(temporary) // CUDA completes the work first
	return p, errors.Join(waitErr, recordErr, destroyErr)
}

// isReached reports whether the stream has reached the recorded position.
func (p *Point) isReached() (done bool, err error) {
	err = p.streams.GPU.Query(func(api *cuda.Driver) error {
		done, err = api.EventQuery(p.Handle)
		return err
	})
	runtime.KeepAlive(p)           // its CUDA event must not go to the pool during the query
	p.streams.HappensBefore.Load() // makes the writes of earlier host functions visible
	return done, err
}

// Event marks the position at which it was last recorded. An event that has never been recorded
// counts as done.
type Event struct {
	streams *Streams

	mu       ranked.Mutex[eventMu]
	point    *Point // nil before the first record; guarded by mu
	isShared bool   // another Event may use the point, too; guarded by mu
}

// Point returns the event's point, or nil if the event has never been recorded.
func (e *Event) Point() *Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.point
}

// Query reports whether the stream has reached the last recorded position.
func (e *Event) Query() (done bool, err error) {
	point := e.Point()
	if point == nil {
		return true, nil
	}

	return point.isReached()
}

// Done reports whether the stream has reached the last recorded position or the device has failed.
func (e *Event) Done() bool { return hasEnded(e.Query()) }

// hasEnded interprets the results of a query of a stream or an event. After an error of the device,
// no work is running, and hasEnded returns true. If a capture forbids the query, work may be
// running, and hasEnded returns false.
func hasEnded(done bool, err error) bool {
	isDeviceError := err != nil && !errors.Is(err, cuda.ErrCaptureUnsupported)
	return done || isDeviceError
}

// Synchronize waits until the stream has reached the last recorded position.
func (e *Event) Synchronize(ctx context.Context) error {
	if err := gpu.PollQuery(ctx, e.Query); err != nil {
		return fmt.Errorf("synchronizing an event: %w", err)
	}

	return nil
}

// StreamWait makes later work of a stream wait for the last recorded position.
func (e *Event) StreamWait(stream cuda.Stream, api *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.point == nil {
		return nil
	}

	return api.StreamWaitEvent(stream, e.point.Handle)
}

// newFixedPoint returns a new point that is reached after the event's point. A graph waits for the
// new point, because a later Record can move the event's point. It returns nil if the event has
// never been recorded. The CUDA context must be current.
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

// Record records the event on a stream, after the queued work. The caller must ensure, usually by
// the stream's lock, that the stream is not destroyed and begins no capture meanwhile. The CUDA
// context must be current.
func (e *Event) Record(stream cuda.Stream) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	point := e.point
	needsNewPoint := point == nil || e.isShared
	if needsNewPoint {
		var err error
		point, err = e.streams.NewPoint()
		if err != nil {
			return err
		}
	}

	if err := e.streams.GPU.CUDA.EventRecord(point.Handle, stream); err != nil {
		return err
	}

	e.point = point
	e.isShared = false
	return nil
}

// setPoint replaces the event's point by a recorded one, which no other event uses.
func (e *Event) setPoint(point *Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point = point
	e.isShared = false
}

// sharePoint makes e share the point of another event.
func (e *Event) sharePoint(other *Event) {
	other.mu.Lock()
	point := other.point
	other.isShared = true
	other.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point = point
	e.isShared = true
}

// RecordAfter returns an event at the end of the work that symmem has queued on s.
//
// On a stream of this package, it records e there. On an adopted stream, which belongs to another
// library, s.queuedEnd marks this end already, but is recorded again after later work. If keepPoint
// is set, e shares the point of s.queuedEnd. Otherwise, RecordAfter returns s.queuedEnd.
//
// The caller must meet the conditions of Record.
func (e *Event) RecordAfter(s *Stream, keepPoint bool) (*Event, error) {
	if !s.isAdopted {
		e.streams = s.streams
		err := e.Record(s.CUDA)
		return e, err
	}

	if !keepPoint {
		return &s.queuedEnd, nil
	}

	e.streams = s.streams
	e.sharePoint(&s.queuedEnd)
	return e, nil
}

// eventPool holds the CUDA events of unreachable Points for reuse.
type eventPool struct {
	mu     ranked.Mutex[poolMu]
	unused []cuda.Event // guarded by mu
}

// take returns an unused event, or creates one.
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

// put adds an event to the pool.
func (p *eventPool) put(handle cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unused = append(p.unused, handle)
}

// destroyAll destroys the events in the pool.
func (p *eventPool) destroyAll(api *cuda.Driver) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, handle := range p.unused {
		err := api.EventDestroy(handle)
		errs = append(errs, err)
	}

	p.unused = nil
	return errors.Join(errs...)
}
