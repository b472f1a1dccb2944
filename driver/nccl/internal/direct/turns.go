package direct

import (
	"errors"

	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Turns keeps the calls of a group in the order of their launches, whatever streams they are on and
// whatever path they take: each begins when the one before has ended. NCCL does the same for its
// own kernels, so two of those are left to it. Kernels of ours may not fit on the GPU together with
// one of NCCL's; ranks that ran the two in different orders would wait for each other without end.
//
// A group without kernels of our own needs no turns.
//
// Methods are called with the communicator's mu held, and with a driver that is in the context.
type Turns struct {
	// open is the stream of the latest launch as long as an event can be recorded there. Else tail
	// is the event behind the launch; nil before the first.
	open *stream.Stream
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
	if t.open == s {
		return nil
	}
	ordered := before && byNCCL
	if t.open != nil && !ordered {
		if err := t.Mark(false); err != nil {
			return err
		}
	}
	if t.tail != nil && !ordered {
		if err := t.tail.HoldUp(s.CUDA, gpu); err != nil {
			return err
		}
	}
	t.open, t.tail = s, nil
	s.Carry(g)
	return nil
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
	if t.open != nil {
		if err := t.Mark(false); err != nil {
			return err
		}
	}
	turn, err := d.NewPoint()
	if err != nil {
		return err
	}
	aside, err := d.GPU.CUDA.StreamCreate(true)
	if err != nil {
		return err
	}
	if t.tail != nil {
		err = t.tail.HoldUp(aside, d.GPU.CUDA)
	}
	err = errors.Join(err, d.GPU.CUDA.EventRecord(turn.Handle, aside), d.GPU.CUDA.StreamDestroy(aside))
	if err != nil {
		return err
	}
	t.replays, t.tail = turn, nil
	return nil
}

// Mark puts the tail behind what the latest stream has to do. One that lasts stays there when the
// stream gets more.
func (t *Turns) Mark(lasting bool) error {
	tail, err := t.open.Mark(&t.own, lasting)
	if err == nil {
		t.open, t.tail = nil, tail
	}
	return err
}

// Open is the stream of the latest launch as long as an event can be recorded there, or nil.
func (t *Turns) Open() *stream.Stream { return t.open }

// Replayed reports whether another library has captured a kernel of the group.
func (t *Turns) Replayed() bool { return t.replays != nil }

// Forget has the next launch wait for none.
func (t *Turns) Forget() { t.open, t.tail = nil, nil }
