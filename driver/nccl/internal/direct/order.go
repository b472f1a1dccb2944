package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder makes a group's calls run in the order of their launches, on all streams and paths.
// It does not order two consecutive NCCL calls, because NCCL does that. A direct kernel may not fit
// on the GPU together with an NCCL kernel. Ranks that ran the two in different orders would
// deadlock.
//
// A group without direct kernels needs no LaunchOrder.
//
// RecordLatest and ForgetLatest must be called with the stream's lock held. All other methods must
// be called with the communicator's mu held. The cuda.Driver passed to them must use the GPU's
// context.
type LaunchOrder struct {
	// RecordLatest locks mu. A launch holds mu from the time it reads latest until it becomes the
	// latest launch.
	mu ranked.Mutex[orderMu]
	// latest is the stream of the latest launch while an event can still be recorded there. After
	// that, latestEvent is the event after the launch. Before the first launch, both are nil. Both
	// are written with mu held. A goroutine that changes latest from or to a stream also holds that
	// stream's lock.
	latest      atomic.Pointer[stream.Stream]
	latestEvent *stream.Event
	// own is the event for streams that are not adopted. Each adopted stream has a separate event.
	own stream.Event
	// ByNCCL reports whether the latest launch consists only of NCCL kernels.
	ByNCCL bool
	// replayEvent is set after another library has captured a call of the group. symmem does not
	// see the replays of that library's graph. So each replay and each launch waits for replayEvent
	// and records it again. latest and latestEvent are nil from then on.
	replayEvent *stream.Point
}

// Begin makes a stream wait for the latest launch on another stream or in a replay. It does not
// wait if both launches are NCCL's.
func (t *LaunchOrder) Begin(
	g stream.Group, s *stream.Stream, byNCCL bool, gpu *cuda.Driver,
) error {
	previousByNCCL := t.ByNCCL
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
	if !previousByNCCL || !byNCCL {
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

// End is called after a launch has been queued. It records replayEvent if that event exists.
func (t *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if t.replayEvent == nil {
		return nil
	}
	return gpu.EventRecord(t.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent creates replayEvent after the latest launch, if it does not exist. Graphs of
// other libraries refer to the event, and keep the communicator that owns it alive.
func (t *LaunchOrder) makeReplayEvent(d *stream.Streams) error {
	if t.replayEvent != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	point, err := d.NewPointAfter(func(on cuda.Stream) error {
		return t.waitForLatest(on, d.GPU.CUDA)
	})
	if err != nil {
		return err
	}
	t.replayEvent, t.latestEvent = point, nil
	t.latest.Store(nil)
	return nil
}

// RecordLatest records latestEvent if the latest launch is on the stream. latestEvent then marks
// the end of the work queued so far.
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

// Latest returns the stream of the latest launch while an event can still be recorded there.
// Otherwise it returns nil.
func (t *LaunchOrder) Latest() *stream.Stream { return t.latest.Load() }

// ForgetLatest forgets the latest launch if it is on stream s. The next launch then does not wait
// for it.
func (t *LaunchOrder) ForgetLatest(s *stream.Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Latest() == s {
		t.latestEvent = nil
		t.latest.Store(nil)
	}
}
