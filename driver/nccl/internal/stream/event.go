package stream

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Event marks a point in a stream. One without a point is done.
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

// Query is Done, and tells what CUDA says against it.
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
	var failed error
	err := gpu.Poll(ctx, func() bool {
		done, err := e.Query()
		failed = err
		return done || err != nil
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("synchronizing an event: %w", err)
	}
	return nil
}

// Record marks the event's point on a stream. The stream's lock is held. It is called on a thread
// of the context.
func (e *Event) Record(on *Stream) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.at
	if at == nil || e.shared {
		if at, err = e.streams.NewPoint(); err != nil {
			return err
		}
	}
	if err := e.streams.GPU.CUDA.EventRecord(at.Handle, on.CUDA); err != nil {
		return err
	}
	e.at, e.shared = at, false
	return nil
}

// set makes a point the event's. Nobody else records it.
func (e *Event) set(at *Point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.shared = at, false
}

// take makes the point of another event that of both.
func (e *Event) take(from *Event) {
	from.mu.Lock()
	at := from.at
	from.shared = true
	from.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at, e.shared = at, true
}

// HoldUp makes later work of a stream wait for the event's point.
func (e *Event) HoldUp(on cuda.Stream, gpu *cuda.Driver) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.at == nil {
		return nil
	}
	return gpu.StreamWaitEvent(on, e.at.Handle)
}
