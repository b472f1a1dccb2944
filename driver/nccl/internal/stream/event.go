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

// Point owns a CUDA event, a mark in the work of a stream. Recording the event again moves the
// mark. The CUDA event returns to a pool when the Point becomes unreachable.
type Point struct {
	streams *Streams // also keeps Points out of Go's tiny allocator, which would delay cleanups
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

// NewPointAfter calls addWaits with a temporary stream, and returns a point behind the waits. An
// existing stream could be capturing. The CUDA context must be current.
func (streams *Streams) NewPointAfter(addWaits func(stream cuda.Stream) error) (*Point, error) {
	p, err := streams.NewPoint()
	if err != nil {
		return nil, err
	}

	temporary, err := streams.GPU.CUDA.StreamCreate()
	if err != nil {
		return nil, err
	}

	waitErr := addWaits(temporary)
	recordErr := streams.GPU.CUDA.EventRecord(p.Handle, temporary)
	destroyErr := streams.GPU.CUDA.StreamDestroy(temporary) // the waits continue
	return p, errors.Join(waitErr, recordErr, destroyErr)
}

// isReached reports whether the work before the point has completed.
func (p *Point) isReached() (done bool, err error) {
	err = p.streams.GPU.Query(func(api *cuda.Driver) error {
		done, err = api.EventQuery(p.Handle)
		return err
	})
	runtime.KeepAlive(p)           // keeps the CUDA event out of the pool during the query
	p.streams.HappensBefore.Load() // makes writes of host functions visible
	return done, err
}

// Event marks the position of its last Record. Several Events can share a Point, so Record replaces
// a shared Point instead of moving it.
type Event struct {
	streams *Streams

	mu       ranked.Mutex[eventMu] // guards the following fields
	point    *Point                // nil before the first Record
	isShared bool                  // another Event may use point, too
}

// Point returns nil if the event has never been recorded.
func (e *Event) Point() *Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.point
}

// Query reports whether the stream has reached the event or the event has never been recorded.
func (e *Event) Query() (done bool, err error) {
	point := e.Point()
	if point == nil {
		return true, nil
	}

	return point.isReached()
}

// Done reports whether the stream has reached the event or the device has failed.
func (e *Event) Done() bool { return hasEnded(e.Query()) }

// hasEnded interprets the results of a query of a stream or an event. A device error ends all work.
func hasEnded(done bool, queryErr error) bool {
	isForbiddenByCapture := errors.Is(queryErr, cuda.ErrCaptureUnsupported)
	isDeviceError := queryErr != nil && !isForbiddenByCapture
	return done || isDeviceError
}

// Synchronize waits until the stream has reached the event.
func (e *Event) Synchronize(ctx context.Context) error {
	if err := gpu.PollQuery(ctx, e.Query); err != nil {
		return fmt.Errorf("synchronizing an event: %w", err)
	}

	return nil
}

// StreamWait makes later work of a stream wait for the event.
func (e *Event) StreamWait(stream cuda.Stream, api *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.point == nil {
		return nil
	}

	return api.StreamWaitEvent(stream, e.point.Handle)
}

// newFixedPoint returns a point at the current position of the event, which the next Record does
// not move, or nil if the event has never been recorded. The CUDA context must be current.
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

// Record moves the event behind the queued work of a stream. The caller usually holds the stream's
// lock, because the stream must not be captured or destroyed meanwhile. The CUDA context must be
// current.
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

// setPoint moves the event to a point that no other event uses.
func (e *Event) setPoint(point *Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.point = point
	e.isShared = false
}

// sharePoint moves e to the point of other.
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

// RecordAfter returns an event at the end of the work that symmem has queued on s, usually e.
// Without keepPoint, it may instead return an event of s that moves when symmem queues more work.
// The caller has the same obligations as for Record.
func (e *Event) RecordAfter(s *Stream, keepPoint bool) (*Event, error) {
	if !s.isAdopted {
		e.streams = s.streams
		err := e.Record(s.CUDA)
		return e, err
	}

	if keepPoint {
		e.streams = s.streams
		e.sharePoint(&s.queuedEnd)
		return e, nil
	}

	return &s.queuedEnd, nil
}

// eventPool holds the CUDA events of unreachable Points for reuse.
type eventPool struct {
	mu     ranked.Mutex[poolMu]
	unused []cuda.Event // guarded by mu
}

// take creates an event if the pool is empty.
func (p *eventPool) take(streams *Streams) (cuda.Event, error) {
	p.mu.Lock()
	if last := len(p.unused) - 1; last >= 0 {
		handle := p.unused[last]
		p.unused = p.unused[:last]
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
