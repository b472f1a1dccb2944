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
// Suppose that the latest launch was on stream A. If the next launch is on stream B, its Begin
// records an event on A, and makes B wait for the event. If the next launch is on A, too, no event
// is needed. Sometimes A is needed for something else before the next launch, such as a capture.
// RecordLatest then records the event at once, and Begin uses that event later.
//
// Another library can capture a call, and replay it without notice. From the first such capture
// on, there is only one event, replayEvent. Each launch or replay first waits for it, and records
// it again at the end.
//
// Callers of Begin, End, RecordLatest and ForgetLatest must hold the stream's lock. For Begin and
// End, they must also hold the communicator's mu, and pass a driver that uses the GPU's context.
type LaunchOrder struct {
	// IsLatestOnlyNCCL is set if the latest launch consists only of NCCL kernels. The communicator's
	// mu guards it.
	IsLatestOnlyNCCL bool
	// replayEvent is nil before the first such capture. The communicator's mu guards it.
	replayEvent *stream.Point

	// mu guards the following fields. The communicator's mu would not do for this, because it may be
	// held during waits for other ranks, and RecordLatest must not wait so long.
	mu ranked.Mutex[orderMu]
	// latestStream is the stream of the latest launch. It is nil before the first launch, after
	// ForgetLatest, and when latestEvent or replayEvent has replaced it. Reads do not require mu. To
	// store a stream, the caller must also hold the lock of that stream.
	latestStream atomic.Pointer[stream.Stream]
	latestEvent  *stream.Event // the event of RecordLatest after the latest launch, or nil
	reusedEvent  stream.Event  // storage for events, to avoid allocations
}

// LatestStream returns the stream of the latest launch. It returns nil if there was no launch, or
// if no event need be recorded on the stream any more.
func (o *LaunchOrder) LatestStream() *stream.Stream { return o.latestStream.Load() }

// Begin makes stream s wait for the latest launch, if that is necessary. Call it before the next
// launch is queued on s. isOnlyNCCL is set if that launch consists only of NCCL kernels.
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
		return nil // work on one stream runs in order
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

	if event == nil {
		return nil // there was no launch, or it was forgotten
	}

	return event.StreamWait(s, gpu)
}

// End completes a launch. Call it after the launch has been queued on stream s.
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

// ForgetLatest makes later launches ignore the latest launch if it is on stream s.
func (o *LaunchOrder) ForgetLatest(s *stream.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() == s {
		o.replaceStream(nil)
	}
}

// replaceStream replaces latestStream by an event, which may be nil. The caller must hold o.mu.
func (o *LaunchOrder) replaceStream(event *stream.Event) {
	o.latestEvent = event
	o.latestStream.Store(nil)
}

// makeReplayEvent creates replayEvent after the latest launch, unless replayEvent exists. Graphs of
// other libraries refer to the event, and keep the communicator that owns it. The caller must hold
// the communicator's mu.
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
