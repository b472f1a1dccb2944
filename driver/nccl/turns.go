package nccl

import (
	"errors"
	"slices"

	"symmem/driver"
	"symmem/internal/cuda"
)

// turns keeps the calls of a group in the order of their launches, whatever streams they are on and
// whatever path they take: each begins when the one before has ended. NCCL does the same for its
// own kernels, so two of those are left to it. Kernels of ours may not fit on the GPU together with
// one of NCCL's; ranks that ran the two in different orders would wait for each other without end.
//
// A group without kernels of our own needs no turns.
//
// Methods are called with the communicator's mu held, and with a driver that is in the context.
type turns struct {
	// open is the stream of the latest launch as long as an event can be recorded there. Else tail
	// is the event behind the launch; nil before the first.
	open *stream
	tail *event
	// own is the event for streams of our own; an adopted one has its own.
	own event
	// byNCCL is set if the latest launch is one of NCCL's kernels alone.
	byNCCL bool
	// replays is set once another library has captured a call of the group. When it replays its
	// graphs is not seen, so each launch of one, and each of ours, waits for this event, and
	// records it anew behind itself; open and tail are nil from then on.
	replays *point
}

// take makes a stream wait for the latest launch on another one, or in a replay, unless both are
// NCCL's alone.
func (t *turns) take(c *communicator, s *stream, byNCCL bool, gpu *cuda.Driver) error {
	before := t.byNCCL
	t.byNCCL = byNCCL
	if t.replays != nil {
		s.carry(c)
		return gpu.StreamWaitEvent(s.handle, t.replays.handle)
	}
	if t.open == s {
		return nil
	}
	ordered := before && byNCCL
	if t.open != nil && !ordered {
		if err := t.mark(); err != nil {
			return err
		}
	}
	if t.tail != nil && !ordered {
		if err := t.tail.holdUp(s.handle, gpu); err != nil {
			return err
		}
	}
	t.open, t.tail = s, nil
	s.carry(c)
	return nil
}

// pass lets the next launch begin, wherever it is, when a stream has done what it has.
func (t *turns) pass(s *stream, gpu *cuda.Driver) error {
	if t.replays == nil {
		return nil
	}
	return gpu.EventRecord(t.replays.handle, s.handle)
}

// awaitReplays makes the event for replays, if there is none yet, and puts it behind the latest
// launch: on a stream that does nothing else, since the others may be captured. The communicator
// keeps it, which stays as long as those graphs.
func (t *turns) awaitReplays(d *Device) error {
	if t.replays != nil {
		return nil
	}
	if t.open != nil {
		if err := t.mark(); err != nil {
			return err
		}
	}
	turn, err := d.newPoint()
	if err != nil {
		return err
	}
	aside, err := d.cuda.StreamCreate(true)
	if err != nil {
		return err
	}
	if t.tail != nil {
		err = t.tail.holdUp(aside, d.cuda)
	}
	err = errors.Join(err, d.cuda.EventRecord(turn.handle, aside), d.cuda.StreamDestroy(aside))
	if err != nil {
		return err
	}
	t.replays, t.tail = turn, nil
	return nil
}

// mark puts the tail behind what the latest stream has to do.
func (t *turns) mark() error {
	s := t.open
	if s.adopted {
		t.open, t.tail = nil, &s.behind
		return nil
	}
	t.own.device = s.device
	if err := t.own.record(s); err != nil {
		return err
	}
	t.open, t.tail = nil, &t.own
	return nil
}

// forget has the next launch wait for none.
func (t *turns) forget() error {
	t.open, t.tail = nil, nil
	return nil
}

// carry notes that kernels of a group are on the stream. s.mu is held.
func (s *stream) carry(c *communicator) {
	if slices.Contains(s.carries, c) {
		return
	}
	s.carries = slices.DeleteFunc(s.carries, func(c *communicator) bool { return c.closing.Load() })
	s.carries = append(s.carries, c)
}

// leave is called before a stream captures or ends, after which groups must not record events
// on it. s.mu is held.
func (s *stream) leave() error {
	for _, c := range s.carries {
		if err := s.leaveGroup(c, (*turns).mark); err != nil {
			return err
		}
	}
	return nil
}

// detach is leave for a CUDA stream that is given up with its work, for which nobody waits then.
func (s *stream) detach() {
	for _, c := range s.carries {
		_ = s.leaveGroup(c, (*turns).forget)
	}
}

func (s *stream) leaveGroup(c *communicator, do func(*turns) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.direct.turns.open != s {
		return nil
	}
	return s.device.do(func() error { return do(&c.direct.turns) })
}

// failReported fails the groups whose kernels have reported a fault: the stream must not be taken
// for done well.
func (s *stream) failReported() {
	s.mu.Lock()
	carries := slices.Clone(s.carries)
	s.mu.Unlock()
	for _, c := range carries {
		if err := c.askKernels(); err != nil {
			c.end()
			s.blame(c, err)
		}
	}
}

// replayFault returns the fault of a group that has failed, whose calls the owner of the stream may
// have replayed here, once: it may replay what it has captured on any of its streams.
func (s *stream) replayFault() error {
	if !s.adopted {
		return nil
	}
	for _, c := range s.device.openCommunicators() {
		if !c.replayed.Load() {
			continue
		}
		_ = c.askKernels()
		if cause := c.plane.Cause(); cause != nil && !errors.Is(cause, driver.ErrClosed) {
			s.blame(c, cause)
		}
	}
	return s.takeFault()
}
