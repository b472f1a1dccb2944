package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder serializes the calls of a group in the order of their launches, whatever streams and
// paths they use. NCCL serializes its own kernels, so two consecutive calls of NCCL are left to it.
// A direct kernel may not fit on the GPU together with one of NCCL; ranks that ran the two in
// different orders would deadlock.
//
// A group without direct kernels needs no LaunchOrder.
//
// Methods must be called with the communicator's mu held, except RecordLatest and ForgetLatest,
// which need the stream's lock instead. The driver that they are given must be in the context.
type LaunchOrder struct {
	// mu is held from the time a launch reads latest until it becomes the latest launch itself, and by
	// RecordLatest.
	mu ranked.Mutex[orderMu]
	// latest is the stream of the latest launch while an event can still be recorded there; otherwise
	// latestEvent is the event after that launch, or nil before the first launch. Both change with mu
	// held. While a goroutine holds a stream's lock, only that goroutine sets latest to the stream or
	// replaces the stream there.
	latest      atomic.Pointer[stream.Stream]
	latestEvent *stream.Event
	// own is the event for streams that are not adopted. Adopted streams have their own.
	own stream.Event
	// ByNCCL reports whether the latest launch consists of NCCL kernels only.
	ByNCCL bool
	// replayEvent is set once another library has captured a call of the group. Its replays are
	// invisible to us, so each replay, and each of our launches, waits for this event and records it
	// again afterwards. latest and latestEvent are nil from then on.
	replayEvent *stream.Point
}

// Begin makes a stream wait for the latest launch on another stream or in a replay, unless both
// launches are NCCL's.
func (t *LaunchOrder) Begin(
	g stream.Group, s *stream.Stream, byNCCL bool, gpu *cuda.Driver,
) error {
	before := t.ByNCCL
	t.ByNCCL = byNCCL
	if t.replayEvent != nil {
		s.AddGroup(g)
		return gpu.StreamWaitEvent(s.CUDA, t.replayEvent.Handle)
	}
	if t.Latest() == s {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !before || !byNCCL {
		if err := t.waitForLatest(s.CUDA, gpu); err != nil {
			return err
		}
	}
	t.latest.Store(s)
	t.latestEvent = nil
	s.AddGroup(g)
	return nil
}

// waitForLatest makes later work of a stream wait for the latest launch. t.mu is held.
func (t *LaunchOrder) waitForLatest(on cuda.Stream, gpu *cuda.Driver) (err error) {
	tail := t.latestEvent
	if open := t.Latest(); open != nil {
		if tail, err = t.own.RecordAfter(open, false); err != nil {
			return err
		}
	}
	if tail == nil {
		return nil
	}
	return tail.StreamWait(on, gpu)
}

// End is called after a launch was queued. It records the replay event, if there is one.
func (t *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if t.replayEvent == nil {
		return nil
	}
	return gpu.EventRecord(t.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent creates the replay event after the latest launch, unless there is one. Graphs of
// other libraries refer to the event, and keep the communicator that owns it.
func (t *LaunchOrder) makeReplayEvent(d *stream.Streams) error {
	if t.replayEvent != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, err := d.PointBehind(func(on cuda.Stream) error { return t.waitForLatest(on, d.GPU.CUDA) })
	if err != nil {
		return err
	}
	t.replayEvent, t.latestEvent = at, nil
	t.latest.Store(nil)
	return nil
}

// RecordLatest records latestEvent after the work queued on a stream, if the latest launch is on
// that stream. Work that the stream gets later does not move the event.
func (t *LaunchOrder) RecordLatest(s *stream.Stream) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Latest() != s {
		return nil
	}
	tail, err := t.own.RecordAfter(s, true)
	if err == nil {
		t.latestEvent = tail
		t.latest.Store(nil)
	}
	return err
}

// Latest returns the stream of the latest launch while an event can be recorded there, or nil.
func (t *LaunchOrder) Latest() *stream.Stream { return t.latest.Load() }

// ForgetLatest makes the next launch wait for nothing if the latest launch is on stream s.
func (t *LaunchOrder) ForgetLatest(s *stream.Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Latest() == s {
		t.latestEvent = nil
		t.latest.Store(nil)
	}
}
