package direct

import (
	"errors"
	"sync/atomic"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Turns keeps the calls of a group in the order of their launches, whatever streams they are on and
// whatever path they take: each begins when the one before has ended. NCCL does the same for its
// own kernels, so two of those are left to it. Kernels of ours may not fit on the GPU together with
// one of NCCL's; ranks that ran the two in different orders would wait for each other without end.
//
// A group without kernels of our own needs no turns.
//
// Methods are called with the communicator's mu held, Leave and Forget with that of the stream
// instead, and with a driver that is in the context.
type Turns struct {
	// mu is held from when a launch looks for the latest until it is the latest, and by Leave.
	mu ranked.Mutex[turnsMu]
	// open is the stream of the latest launch as long as an event can be recorded there. It changes
	// with mu held; to and from a stream whose lock is held only by who holds that. Else tail is the
	// event behind the launch; nil before the first; guarded by mu.
	open atomic.Pointer[stream.Stream]
	tail *stream.Event
	// own is the event for streams of our own; an adopted one has its own.
	own stream.Event
	// ByNCCL is set if the latest launch is one of NCCL's kernels alone.
	ByNCCL bool
	// replays is set once another library has captured a call of the group. When it replays its
	// graphs is not seen, so each launch of one, and each of ours, waits for this event, and
	// records it anew behind itself; open and tail are nil from then on.
	replays *stream.Point
}

// Take makes a stream wait for the latest launch on another one, or in a replay, unless both are
// NCCL's alone.
func (t *Turns) Take(
	g stream.Group, s *stream.Stream, byNCCL bool, gpu *cuda.Driver,
) error {
	before := t.ByNCCL
	t.ByNCCL = byNCCL
	if t.replays != nil {
		s.Carry(g)
		return gpu.StreamWaitEvent(s.CUDA, t.replays.Handle)
	}
	if t.Open() == s {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !before || !byNCCL {
		if err := t.holdUp(s.CUDA, gpu); err != nil {
			return err
		}
	}
	t.open.Store(s)
	t.tail = nil
	s.Carry(g)
	return nil
}

// holdUp makes later work of a stream wait for the latest launch. t.mu is held.
func (t *Turns) holdUp(on cuda.Stream, gpu *cuda.Driver) (err error) {
	tail := t.tail
	if open := t.Open(); open != nil {
		if tail, err = open.Mark(&t.own, false); err != nil {
			return err
		}
	}
	if tail == nil {
		return nil
	}
	return tail.HoldUp(on, gpu)
}

// Pass lets the next launch begin, wherever it is, when a stream has done what it has.
func (t *Turns) Pass(s *stream.Stream, gpu *cuda.Driver) error {
	if t.replays == nil {
		return nil
	}
	return gpu.EventRecord(t.replays.Handle, s.CUDA)
}

// awaitReplays makes the event for replays, if there is none yet, and puts it behind the latest
// launch: on a stream that does nothing else, since the others may be captured. The communicator
// keeps it, which stays as long as those graphs.
func (t *Turns) awaitReplays(d *stream.Streams) error {
	if t.replays != nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	turn, err := d.NewPoint()
	if err != nil {
		return err
	}
	aside, err := d.GPU.CUDA.StreamCreate(true)
	if err != nil {
		return err
	}
	err = errors.Join(t.holdUp(aside, d.GPU.CUDA), d.GPU.CUDA.EventRecord(turn.Handle, aside),
		d.GPU.CUDA.StreamDestroy(aside))
	if err != nil {
		return err
	}
	t.replays, t.tail = turn, nil
	t.open.Store(nil)
	return nil
}

// Leave puts the tail behind what a stream has to do, if the latest launch is there. It stays there
// when the stream gets more.
func (t *Turns) Leave(s *stream.Stream) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Open() != s {
		return nil
	}
	tail, err := s.Mark(&t.own, true)
	if err == nil {
		t.tail = tail
		t.open.Store(nil)
	}
	return err
}

// Open is the stream of the latest launch as long as an event can be recorded there, or nil.
func (t *Turns) Open() *stream.Stream { return t.open.Load() }

// Replayed reports whether another library has captured a kernel of the group.
func (t *Turns) Replayed() bool { return t.replays != nil }

// Forget has the next launch wait for none, if the latest is on a stream.
func (t *Turns) Forget(s *stream.Stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.Open() == s {
		t.tail = nil
		t.open.Store(nil)
	}
}
