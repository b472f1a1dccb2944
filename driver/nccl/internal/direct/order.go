package direct

import (
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// LaunchOrder keeps the calls of a group in the order of their launches, whatever streams they are
// on and whatever path they take: each begins when the one before has ended. NCCL does the same for
// its own kernels, so two of those are left to it. Kernels of ours may not fit on the GPU together
// with one of NCCL's; ranks that ran the two in different orders would wait for each other without
// end.
//
// A group without kernels of our own needs no order.
//
// Methods are called with the communicator's mu held, RecordLatest and ForgetLatest with that of
// the stream instead, and with a driver that is in the context.
type LaunchOrder struct {
	// mu is held from when a launch looks for the latest until it is the latest, and by RecordLatest.
	mu ranked.Mutex[orderMu]
	// latest is the stream of the latest launch as long as an event can be recorded there. It changes
	// with mu held; to and from a stream whose lock is held only by who holds that. Else latestEvent
	// is the event behind the launch; nil before the first; guarded by mu.
	latest      atomic.Pointer[stream.Stream]
	latestEvent *stream.Event
	// own is the event for streams of our own; an adopted one has its own.
	own stream.Event
	// ByNCCL is set if the latest launch is one of NCCL's kernels alone.
	ByNCCL bool
	// replayEvent is set once another library has captured a call of the group. When it replays its
	// graphs is not seen, so each launch of one, and each of ours, waits for this event, and
	// records it again after itself; latest and latestEvent are nil from then on.
	replayEvent *stream.Point
}

// Begin makes a stream wait for the latest launch on another one, or in a replay, unless both are
// NCCL's alone.
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

// End lets the next launch begin, on any stream, once the work queued on this one is done.
func (t *LaunchOrder) End(s *stream.Stream, gpu *cuda.Driver) error {
	if t.replayEvent == nil {
		return nil
	}
	return gpu.EventRecord(t.replayEvent.Handle, s.CUDA)
}

// makeReplayEvent makes the event for replays, if there is none yet, behind the latest launch. The
// communicator keeps it, which stays as long as those graphs.
func (t *LaunchOrder) makeReplayEvent(d *stream.Streams) error {
	if t.replayEvent != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	turn, err := d.PointBehind(func(on cuda.Stream) error { return t.waitForLatest(on, d.GPU.CUDA) })
	if err != nil {
		return err
	}
	t.replayEvent, t.latestEvent = turn, nil
	t.latest.Store(nil)
	return nil
}

// RecordLatest records latestEvent after the work queued on a stream, if the latest launch is
// there. It stays there when the stream gets more.
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

// Latest is the stream of the latest launch as long as an event can be recorded there, or nil.
func (t *LaunchOrder) Latest() *stream.Stream { return t.latest.Load() }

// ForgetLatest has the next launch wait for none, if the latest is on a stream.
func (t *LaunchOrder) ForgetLatest(s *stream.Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Latest() == s {
		t.latestEvent = nil
		t.latest.Store(nil)
	}
}
