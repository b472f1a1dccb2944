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

// Point owns a CUDA event, which marks a position in a stream. The CUDA event returns to a pool
// when the Point becomes unreachable.
type Point struct {
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

// NewPointAfter returns a point after the waits that addWaits adds to a temporary stream. Other
// streams could be capturing. The CUDA context must be current.
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
	destroyErr := streams.GPU.CUDA.StreamDestroy(temporary) // keeps its work
	return p, errors.Join(waitErr, recordErr, destroyErr)
}

// isReached reports whether the work before the point has completed.
func (p *Point) isReached() (done bool, err error) {
	err = p.streams.GPU.Query(func(api *cuda.Driver) error {
		done, err = api.EventQuery(p.Handle)
		return err
	})
	runtime.KeepAlive(p) // keeps the CUDA event out of the pool during the query
	p.streams.HappensBefore.Load()
	return done, err
}

// Event holds the Point of its last Record. Several Events can share a Point.
type Event struct {
	streams *Streams

	mu       ranked.Mutex[eventMu] // guards the following fields
	point    *Point                // nil before the first Record
	isShared bool                  // another Event may use point
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
	isRefused := errors.Is(queryErr, cuda.ErrCaptureUnsupported)
	hasDeviceFailed := queryErr != nil && !isRefused
	return done || hasDeviceFailed
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

// newFixedPoint returns a new point at the event's position. Later Records do not move it. The
// point is nil if the event has never been recorded. The CUDA context must be current.
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

// Record moves the event to the end of a stream's queued work. The stream must not be captured or
// destroyed meanwhile, and the CUDA context must be current.
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

// RecordAfter moves e to the end of the work that symmem has queued on s. The caller has the same
// obligations as for Record.
func (e *Event) RecordAfter(s *Stream) error {
	e.streams = s.streams
	if s.isAdopted {
		e.sharePoint(&s.queuedEnd)
		return nil
	}

	return e.Record(s.CUDA)
}

// RecordOrBorrow returns e after RecordAfter. On an adopted stream, it leaves e unchanged, and
// returns queuedEnd. The caller must use the event before symmem queues more work.
func (e *Event) RecordOrBorrow(s *Stream) (*Event, error) {
	if s.isAdopted {
		return &s.queuedEnd, nil
	}

	err := e.RecordAfter(s)
	return e, err
}

// eventPool holds the CUDA events of unreachable Points for reuse.
type eventPool struct {
	mu     ranked.Mutex[poolMu]
	unused []cuda.Event // guarded by mu
}

// take returns an event from the pool, or creates one if the pool is empty.
func (pool *eventPool) take(streams *Streams) (cuda.Event, error) {
	pool.mu.Lock()
	if last := len(pool.unused) - 1; last >= 0 {
		handle := pool.unused[last]
		pool.unused = pool.unused[:last]
		pool.mu.Unlock()
		return handle, nil
	}

	pool.mu.Unlock()
	return gpu.Get(streams.GPU, func() (cuda.Event, error) {
		return streams.GPU.CUDA.EventCreate(cuda.EventDisableTiming)
	})
}

func (pool *eventPool) put(handle cuda.Event) {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	pool.unused = append(pool.unused, handle)
}

func (pool *eventPool) destroyAll(api *cuda.Driver) error {
	pool.mu.Lock()
	defer pool.mu.Unlock()
	var errs []error
	for _, handle := range pool.unused {
		err := api.EventDestroy(handle)
		errs = append(errs, err)
	}

	pool.unused = nil
	return errors.Join(errs...)
}
