package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder makes a group's calls run in the order of their launches, even on different streams.
// Otherwise, kernels of NCCL and of symmem could deadlock, because they wait for other ranks. If
// the latest launch is on another stream, the next one waits for an event after it.
//
// Another library can replay its graph without notice. Once it has captured a call, all launches
// and replays wait for replayEvent and record it again.
//
// Callers of Begin, End, RecordLatest and ForgetLatest must hold the stream's lock. Begin and End
// also require the communicator's mu and a current CUDA context.
type LaunchOrder struct {
	// The communicator's mu guards these fields.
	IsLatestOnlyNCCL bool          // the latest launch has no kernels of symmem
	replayEvent      *stream.Point // nil before another library has captured a call

	mu ranked.Mutex[orderMu] // guards the following fields; not held while waiting for other ranks
	// latestStream is the stream of the latest launch. It is nil before the first launch, and after
	// RecordLatest or ForgetLatest. Storing a stream also requires the stream's lock.
	latestStream atomic.Pointer[stream.Stream]
	latestEvent  *stream.Event // recorded by RecordLatest, or nil
	reusedEvent  stream.Event  // avoids allocations
}

// LatestStream returns the stream of the latest launch, or nil.
func (o *LaunchOrder) LatestStream() *stream.Stream { return o.latestStream.Load() }

// Begin makes stream s wait for the latest launch if necessary. Call it before queuing a launch on
// s. isOnlyNCCL says whether the new launch has no kernels of symmem.
func (o *LaunchOrder) Begin(
	g stream.Group, s *stream.Stream, isOnlyNCCL bool, api *cuda.Driver,
) error {
	isOrderedByNCCL := o.IsLatestOnlyNCCL && isOnlyNCCL // NCCL orders its own kernels
	o.IsLatestOnlyNCCL = isOnlyNCCL
	if o.replayEvent != nil {
		s.AddGroup(g)
		return api.StreamWaitEvent(s.CUDA, o.replayEvent.Handle)
	}

	if o.LatestStream() == s {
		return nil // a stream keeps the order
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	if !isOrderedByNCCL {
		if err := o.waitForLatest(s.CUDA, api); err != nil {
			return err
		}
	}

	o.latestStream.Store(s)
	o.latestEvent = nil
	s.AddGroup(g)
	return nil
}

// waitForLatest makes a stream wait for the latest launch. The caller must hold o.mu.
func (o *LaunchOrder) waitForLatest(s cuda.Stream, api *cuda.Driver) (err error) {
	event := o.latestEvent
	if latestStream := o.LatestStream(); latestStream != nil {
		if event, err = o.reusedEvent.RecordOrBorrow(latestStream); err != nil {
			return err
		}
	}

	if event == nil { // no launch to wait for
		return nil
	}

	return event.StreamWait(s, api)
}

// End completes a launch that has been queued on stream s.
func (o *LaunchOrder) End(s *stream.Stream, api *cuda.Driver) error {
	if o.replayEvent == nil {
		return nil // the next Begin adds a wait if necessary
	}

	return api.EventRecord(o.replayEvent.Handle, s.CUDA)
}

// RecordLatest records an event after the latest launch if that launch is on stream s. Call it
// before s is closed, starts a capture or waits for other work.
func (o *LaunchOrder) RecordLatest(s *stream.Stream) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() != s {
		return nil
	}

	if err := o.reusedEvent.RecordAfter(s); err != nil {
		return err
	}

	o.setLatestEvent(&o.reusedEvent)
	return nil
}

// ForgetLatest lets the next launch start without waiting for the latest launch, if the latest
// launch is on s. Call it after s has been abandoned.
func (o *LaunchOrder) ForgetLatest(s *stream.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() == s {
		o.setLatestEvent(nil)
	}
}

// setLatestEvent makes the next launch wait for event instead of latestStream, or for nothing if
// event is nil. The caller must hold o.mu.
func (o *LaunchOrder) setLatestEvent(event *stream.Event) {
	o.latestEvent = event
	o.latestStream.Store(nil)
}

// makeReplayEvent creates replayEvent after the latest launch, if it does not exist yet. The caller
// must hold the communicator's mu.
func (o *LaunchOrder) makeReplayEvent(streams *stream.Streams) error {
	if o.replayEvent != nil {
		return nil
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	point, err := streams.NewPointAfter(func(s cuda.Stream) error {
		return o.waitForLatest(s, streams.GPU.CUDA)
	})
	if err != nil {
		return err
	}

	o.replayEvent = point
	o.setLatestEvent(nil)
	return nil
}
