package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder makes a group's calls run in the order in which they were launched, whatever streams
// and paths they use. Ranks whose direct kernels (symmem's own) and NCCL kernels ran in different
// orders could deadlock.
//
// Callers of RecordLatest and ForgetLatest must hold the stream's lock, and callers of all other
// methods the communicator's mu. The cuda.Driver passed to them must use the GPU's context.
type LaunchOrder struct {
	// A launch holds mu from the time when it reads latest until it has set latest to its stream.
	mu ranked.Mutex[orderMu]
	// latest is the stream of the latest launch as long as an event can still be recorded there.
	// After that, latestEvent marks the end of the launch. Both are written with mu held. A
	// goroutine that writes latest also holds the stream's lock.
	latest      atomic.Pointer[stream.Stream]
	latestEvent *stream.Event
	// event is used for all streams except adopted ones.
	event stream.Event
	// ByNCCL is set if the latest launch consists only of NCCL kernels.
	ByNCCL bool
	// replayEvent is set once another library has captured a call of the group. Each replay and
	// each launch then waits for it and records it again.
	replayEvent *stream.Point
}

// Begin makes a stream wait for the latest launch on another stream or in a replay. It does not
// wait if both launches are NCCL calls.
func (o *LaunchOrder) Begin(
	g stream.Group, s *stream.Stream, byNCCL bool, gpu *cuda.Driver,
) error {
	previousByNCCL := o.ByNCCL
	o.ByNCCL = byNCCL
	if o.replayEvent != nil {
		s.AddGroup(g)
		return gpu.StreamWaitEvent(s.CUDA, o.replayEvent.Handle)
	}
	if o.Latest() == s {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !previousByNCCL || !byNCCL {
		if err := o.waitForLatest(s.CUDA, gpu); err != nil {
			return err
		}
	}
	o.latest.Store(s)
	o.latestEvent = nil
	s.AddGroup(g)
	return nil
}

// waitForLatest makes later work of a stream wait for the latest launch. The caller must hold o.mu.
func (o *LaunchOrder) waitForLatest(s cuda.Stream, gpu *cuda.Driver) (err error) {
	event := o.latestEvent
	if latest := o.Latest(); latest != nil {
		if event, err = o.event.RecordAfter(latest, false); err != nil {
			return err
		}
	}
	if event == nil {
		return nil
	}
	return event.StreamWait(s, gpu)
}

// End must be called after a launch has been queued.
func (o *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if o.replayEvent == nil {
		return nil
	}
	return gpu.EventRecord(o.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent creates replayEvent if it does not exist yet. Graphs of other libraries refer to
// the event, and keep the communicator that owns it alive.
func (o *LaunchOrder) makeReplayEvent(d *stream.Streams) error {
	if o.replayEvent != nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	point, err := d.NewPointAfter(func(s cuda.Stream) error {
		return o.waitForLatest(s, d.GPU.CUDA)
	})
	if err != nil {
		return err
	}
	o.replayEvent, o.latestEvent = point, nil
	o.latest.Store(nil)
	return nil
}

// RecordLatest records latestEvent if the latest launch is on stream s.
func (o *LaunchOrder) RecordLatest(s *stream.Stream) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Latest() != s {
		return nil
	}
	event, err := o.event.RecordAfter(s, true)
	if err == nil {
		o.latestEvent = event
		o.latest.Store(nil)
	}
	return err
}

// Latest returns the stream of the latest launch, or nil if no event can be recorded there.
func (o *LaunchOrder) Latest() *stream.Stream { return o.latest.Load() }

// ForgetLatest forgets the latest launch if it is on stream s. The next launch does not wait for
// it.
func (o *LaunchOrder) ForgetLatest(s *stream.Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Latest() == s {
		o.latestEvent = nil
		o.latest.Store(nil)
	}
}
