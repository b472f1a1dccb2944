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
	// latestStream is the stream of the latest launch while an event can be recorded there. Later,
	// latestEvent marks the launch's end. Writers hold mu and the lock of latestStream.
	latestStream atomic.Pointer[stream.Stream]
	latestEvent  *stream.Event
	reusedEvent  stream.Event // to avoid allocations
	// IsLatestOnlyNCCL is set if the latest launch consists only of NCCL kernels.
	IsLatestOnlyNCCL bool
	// replayEvent is set once another library has captured a call. Each later launch or replay
	// waits for replayEvent and records it again.
	replayEvent *stream.Point
}

// Begin must be called before a launch is queued on stream s. It makes s wait for the latest
// launch, unless both launches consist only of NCCL kernels.
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

// waitForLatest requires o.mu.
func (o *LaunchOrder) waitForLatest(s cuda.Stream, gpu *cuda.Driver) (err error) {
	event := o.latestEvent
	if latestStream := o.LatestStream(); latestStream != nil {
		if event, err = o.reusedEvent.RecordAfter(latestStream, false); err != nil {
			return err
		}
	}
	if event == nil {
		return nil
	}
	return event.StreamWait(s, gpu)
}

// End must be called after a launch has been queued on stream s.
func (o *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if o.replayEvent == nil {
		return nil
	}
	return gpu.EventRecord(o.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent creates an event to which graphs of other libraries refer. These graphs keep the
// communicator that owns the event alive.
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
	event, err := o.reusedEvent.RecordAfter(s, true)
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
