package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder makes a group's calls run in the order of their launches, even on different streams.
// Otherwise, the kernels of NCCL and of symmem could deadlock across ranks. A launch on a different
// stream than the latest launch waits for an event after the latest launch.
//
// After another library has captured a call, symmem does not notice replays of the graph. From then
// on, every launch and every replay waits for replayEvent and records it again.
//
// Callers of Begin, End, RecordLatest and ForgetLatest must hold the stream's lock. Begin and End
// also require the communicator's mu and a current CUDA context.
type LaunchOrder struct {
	// The communicator's mu guards the following fields.

	IsLatestOnlyNCCL bool          // whether the latest launch has no kernels of symmem
	replayEvent      *stream.Point // nil before another library has captured a call

	// mu guards the following fields. Unlike the communicator's mu, it is not held during waits for
	// other ranks.
	mu ranked.Mutex[orderMu]
	// latestStream is the stream of the latest launch. It is nil before the first launch, and after
	// RecordLatest or ForgetLatest. Reads do not require mu. Storing a stream also requires the
	// stream's lock.
	latestStream atomic.Pointer[stream.Stream]
	latestEvent  *stream.Event // recorded by RecordLatest after the latest launch, or nil
	reusedEvent  stream.Event  // reused for each event, to avoid allocations
}

// LatestStream returns the stream of the latest launch, or nil.
func (o *LaunchOrder) LatestStream() *stream.Stream { return o.latestStream.Load() }

// Begin makes stream s wait for the latest launch if necessary. Call it before queuing a launch on
// s. isOnlyNCCL is set if the new launch has no kernels of symmem.
func (o *LaunchOrder) Begin(
	g stream.Group, s *stream.Stream, isOnlyNCCL bool, gpu *cuda.Driver,
) error {
	isOrderedByNCCL := o.IsLatestOnlyNCCL && isOnlyNCCL // NCCL orders its own kernels
	o.IsLatestOnlyNCCL = isOnlyNCCL
	if o.replayEvent != nil {
		s.AddGroup(g)
		return gpu.StreamWaitEvent(s.CUDA, o.replayEvent.Handle)
	}

	if o.LatestStream() == s {
		return nil // a stream keeps the order
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	if !isOrderedByNCCL {
		if err := o.waitForLatest(s.CUDA, gpu); err != nil {
			return err
		}
	}

	o.latestStream.Store(s)
	o.latestEvent = nil
	s.AddGroup(g)
	return nil
}

// waitForLatest makes a stream wait for the latest launch. The caller must hold o.mu.
func (o *LaunchOrder) waitForLatest(s cuda.Stream, gpu *cuda.Driver) (err error) {
	event := o.latestEvent
	if latestStream := o.LatestStream(); latestStream != nil {
		const keepPoint = false // the event is used only here
		if event, err = o.reusedEvent.RecordAfter(latestStream, keepPoint); err != nil {
			return err
		}
	}

	if event == nil { // no launch to wait for
		return nil
	}

	return event.StreamWait(s, gpu)
}

// End completes a launch that has been queued on stream s.
func (o *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if o.replayEvent == nil {
		return nil // the next Begin records an event if it needs one
	}

	return gpu.EventRecord(o.replayEvent.Handle, s.CUDA)
}

// RecordLatest records an event after the latest launch if that launch is on stream s.
func (o *LaunchOrder) RecordLatest(s *stream.Stream) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() != s {
		return nil
	}

	const keepPoint = true // a later launch waits for the event
	event, err := o.reusedEvent.RecordAfter(s, keepPoint)
	if err != nil {
		return err
	}

	o.replaceStream(event)
	return nil
}

// ForgetLatest lets the next launch start without waiting for the latest one, if the latest launch
// is on stream s.
func (o *LaunchOrder) ForgetLatest(s *stream.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() == s {
		o.replaceStream(nil)
	}
}

// replaceStream makes the next launch wait for event, if not nil, instead of latestStream. The
// caller must hold o.mu.
func (o *LaunchOrder) replaceStream(event *stream.Event) {
	o.latestEvent = event
	o.latestStream.Store(nil)
}

// makeReplayEvent records replayEvent after the latest launch, unless replayEvent exists. The
// caller must hold the communicator's mu.
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
	o.replaceStream(nil)
	return nil
}
