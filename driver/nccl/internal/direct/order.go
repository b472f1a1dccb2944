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
// Callers of RecordLatest and ForgetLatest must hold the stream's lock. Callers of other methods
// must hold the communicator's mu. Drivers passed to methods must use the GPU's context.
type LaunchOrder struct {
	mu ranked.Mutex[orderMu] // held from reading to setting latestStream in a launch
	// latestStream is the stream of the latest launch while an event can be recorded there, and nil
	// afterwards. Writers hold mu and the lock of latestStream.
	latestStream atomic.Pointer[stream.Stream]
	latestEvent  *stream.Event // end of the latest launch once latestStream is nil, or nil
	reusedEvent  stream.Event  // storage for events, to avoid allocations
	// IsLatestOnlyNCCL is set if the latest launch consists only of NCCL kernels.
	IsLatestOnlyNCCL bool
	// replayEvent is set once another library has captured a call. Each later launch or replay
	// waits for replayEvent and records it again.
	replayEvent *stream.Point
}

// Begin makes stream s wait for the latest launch, unless both that launch and the next one
// consist only of NCCL kernels. It must be called before the next launch is queued on s.
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
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !wasOnlyNCCL || !isOnlyNCCL {
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
		const keepPoint = false
		if event, err = o.reusedEvent.RecordAfter(latestStream, keepPoint); err != nil {
			return err
		}
	}
	if event == nil {
		return nil
	}
	return event.StreamWait(s, gpu)
}

// End records the event for which later replays wait, if any. It must be called after a launch has
// been queued on stream s.
func (o *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if o.replayEvent == nil {
		return nil
	}
	return gpu.EventRecord(o.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent creates replayEvent, unless it exists. Graphs of other libraries refer to it,
// and keep the communicator that owns the event alive.
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
	o.replayEvent, o.latestEvent = point, nil
	o.latestStream.Store(nil)
	return nil
}

// RecordLatest records latestEvent on stream s if the latest launch is there.
func (o *LaunchOrder) RecordLatest(s *stream.Stream) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.LatestStream() != s {
		return nil
	}
	const keepPoint = true
	event, err := o.reusedEvent.RecordAfter(s, keepPoint)
	if err == nil {
		o.latestEvent = event
		o.latestStream.Store(nil)
	}
	return err
}

// LatestStream returns the stream of the latest launch, or nil if no event can be recorded there.
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
