package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder makes a group's calls run in the order of their launches, even on different streams.
// Ranks could deadlock if symmem's own kernels and NCCL kernels ran in different orders.
//
// Call Begin before each launch and End after it. Begin makes the stream wait for an event after
// the group's latest launch. Usually, Begin records this event. If the stream of the latest launch
// is needed for something else before that, such as a capture, RecordLatest records the event.
//
// Callers of RecordLatest and ForgetLatest must hold the stream's lock. Callers of other methods
// must hold the communicator's mu. Drivers passed to methods must use the GPU's context.
type LaunchOrder struct {
	mu ranked.Mutex[orderMu] // held from reading to setting latestStream in a launch
	// latestStream is the stream of the latest launch. It is nil before the first launch, and after
	// RecordLatest or ForgetLatest. Writers hold mu and the lock of latestStream.
	latestStream atomic.Pointer[stream.Stream]
	// latestEvent is the event that RecordLatest has recorded after the latest launch, or nil.
	latestEvent *stream.Event
	reusedEvent stream.Event // storage for events, to avoid allocations
	// IsLatestOnlyNCCL is set if the latest launch consists only of NCCL kernels.
	IsLatestOnlyNCCL bool
	// replayEvent is set once another library has captured a call, and replaces the other events.
	// That library replays the call without notice. So each later launch or replay waits for
	// replayEvent and records it again.
	replayEvent *stream.Point
}

// Begin makes stream s wait for the latest launch. It need not wait if both that launch and the
// next one consist only of NCCL kernels. isOnlyNCCL is set if the next launch does. Call Begin
// before the next launch is queued on s.
func (o *LaunchOrder) Begin(
	g stream.Group, s *stream.Stream, isOnlyNCCL bool, gpu *cuda.Driver,
) error {
	wasOnlyNCCL := o.IsLatestOnlyNCCL
	o.IsLatestOnlyNCCL = isOnlyNCCL
	if o.replayEvent != nil {
		s.AddGroup(g)
		return gpu.StreamWaitEvent(s.CUDA, o.replayEvent.Handle)
	}

	if o.LatestStream() == s {
		return nil // work on one stream runs in order
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	needsEvent := !wasOnlyNCCL || !isOnlyNCCL // NCCL orders its own kernels
	if needsEvent {
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

	if event == nil {
		return nil // there was no launch, or it was forgotten
	}

	return event.StreamWait(s, gpu)
}

// End records replayEvent, if it is set, for later launches and replays. Call it after a launch has
// been queued on stream s.
func (o *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if o.replayEvent == nil {
		return nil
	}

	return gpu.EventRecord(o.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent creates replayEvent after the latest launch, unless replayEvent exists. Graphs of
// other libraries refer to the event. They keep the communicator that owns it.
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
	o.latestEvent = nil
	o.latestStream.Store(nil)
	return nil
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

	o.latestEvent = event
	o.latestStream.Store(nil)
	return nil
}

// LatestStream returns the stream of the latest launch. It returns nil if there was no launch, or
// if its event need not be recorded on the stream any more.
func (o *LaunchOrder) LatestStream() *stream.Stream { return o.latestStream.Load() }

// ForgetLatest makes later launches ignore the latest launch if it is on stream s.
func (o *LaunchOrder) ForgetLatest(s *stream.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() == s {
		o.latestEvent = nil
		o.latestStream.Store(nil)
	}
}
