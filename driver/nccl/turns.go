package nccl

import (
	"slices"

	"symmem/internal/cuda"
)

// turns keeps the kernels of a group in the order of their launches, whatever streams they are on:
// each begins when the one before has ended. It is what NCCL does for its own.
//
// Methods are called with the communicator's mu held, and with a driver that is in the context.
type turns struct {
	// handle is the CUDA stream of the latest launch; 0 before the first.
	handle cuda.Stream
	// tail is behind the latest launch if marked. Else open is its stream, on which an event can be
	// recorded whenever another stream comes.
	open   *stream
	tail   *event
	marked bool
}

// take makes a stream wait for the latest launch on another one.
func (t *turns) take(c *communicator, s *stream, gpu *cuda.Driver) error {
	if t.handle == s.handle && (t.open == s || t.marked) {
		return nil
	}
	if t.open != nil {
		if err := t.mark(c, gpu); err != nil {
			return err
		}
	}
	if t.marked {
		if err := gpu.StreamWaitEvent(s.handle, t.tail.handle); err != nil {
			return err
		}
	}
	t.handle, t.open, t.marked = s.handle, s, false
	s.carry(c)
	return nil
}

// mark puts the tail behind what the latest stream has to do.
func (t *turns) mark(c *communicator, gpu *cuda.Driver) (err error) {
	if t.tail == nil {
		if t.tail, err = c.device.newEvent(); err != nil {
			return err
		}
	}
	if err := gpu.EventRecord(t.tail.handle, t.handle); err != nil {
		return err
	}
	t.open, t.marked = nil, true
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

// forsake is leave for a CUDA stream that is given up with its work, for which nobody waits then.
func (s *stream) forsake() {
	for _, c := range s.carries {
		_ = s.leaveGroup(c, func(t *turns, _ *communicator, _ *cuda.Driver) error {
			*t = turns{tail: t.tail}
			return nil
		})
	}
}

func (s *stream) leaveGroup(
	c *communicator, do func(*turns, *communicator, *cuda.Driver) error,
) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.direct.turns.open != s {
		return nil
	}
	return s.device.do(func() error { return do(&c.direct.turns, c, s.device.cuda) })
}

// heed fails the groups whose kernels have reported a fault: the stream must not be taken for done
// well.
func (s *stream) heed() {
	s.mu.Lock()
	carries := slices.Clone(s.carries)
	s.mu.Unlock()
	for _, c := range carries {
		if err := c.faulted(); err != nil {
			_ = c.plane.Fail(err)
			c.end()
			s.blame(c, c.plane.Cause())
		}
	}
}
