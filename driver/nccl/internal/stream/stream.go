package stream

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Stream is a CUDA stream with what CUDA does not keep: whose collectives it has, and the first
// fault that one of them met.
//
// States: open; capturing (work is recorded into a graph); closed.
type Stream struct {
	streams *Streams
	gpu     *gpu.GPU
	CUDA    cuda.Stream // guarded by Mu

	Mu      ranked.Spin[streamMu]
	Capture *Graph      // guarded by Mu
	closed  atomic.Bool // changes with Mu and questions held
	// waited tells that all work was waited for and went well. Changes with Mu held.
	waited atomic.Bool
	// last is the group that launched here most recently, ticket its collective.
	last      Group            // guarded by Mu
	ticket    uint64           // guarded by Mu
	operation driver.Operation // guarded by Mu
	// functions counts the host functions; word is what the last one that has run wrote.
	functions uint32    // guarded by Mu
	word      *gpu.Word // guarded by Mu; made at the first use
	// carries are the groups whose kernels were launched here.
	carries []Group // guarded by Mu
	// adopted tells that another library made the stream, and may capture or end it at any time.
	adopted bool
	// behind is behind what an adopted stream was given here. CUDA is asked about it instead of the
	// stream, which would lose a capture that the owner begins just then. Recorded with Mu held.
	behind Event
	// questions is held while CUDA is asked without Mu whether the owner captures, so that Close
	// returns after that: the owner may destroy the stream then. It is taken after Mu.
	questions ranked.RWMutex[streamQuestions]
	// Recording tells that the call under way is put into a capture of the owner. Guarded by Mu.
	Recording bool
	faults    faults
}

// Handle is the stream's CUstream, for work of other libraries.
func (s *Stream) Handle() uintptr {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return uintptr(s.CUDA)
}

// Closed reports whether the stream is closed.
func (s *Stream) Closed() bool { return s.closed.Load() }

// submit makes CUDA calls on an open stream.
func (s *Stream) submit(calls func() error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.Usable(); err != nil {
		return err
	}
	return s.gpu.Do(calls)
}

// give is submit for calls that queue work.
func (s *Stream) give(calls func() error) error {
	return s.submit(func() (err error) {
		if s.adopted && s.Capture == nil {
			if s.Recording, err = s.Captured(); err != nil {
				return err
			}
			defer func() { s.Recording = false }()
		}
		return errors.Join(calls(), s.KeepUp())
	})
}

// BusyAgain notes that the stream gets work that nobody has waited for. s.Mu is held. The load
// spares most launches a locked instruction.
func (s *Stream) BusyAgain() {
	if s.waited.Load() {
		s.waited.Store(false)
	}
}

// Usable refuses a closed stream. s.Mu is held.
func (s *Stream) Usable() error {
	if s.closed.Load() {
		return fmt.Errorf("stream: %w", driver.ErrClosed)
	}
	return nil
}

// Note notes the collective, or message, that is about to be queued. s.Mu is held.
func (s *Stream) Note(g Group, ticket uint64, operation driver.Operation) {
	s.last, s.ticket, s.operation = g, ticket, operation
}

// Waited reports whether all work was waited for and went well.
func (s *Stream) Waited() bool { return s.waited.Load() }

// Fail does nothing: the caller knows the error, and what a GPU has been given runs on.
func (s *Stream) Fail(error) {}

// Blame has the next Synchronize tell the fault of a group, once.
func (s *Stream) Blame(g Group, err error) { s.faults.blame(g, err) }

// Told notes that the caller knows of the fault of a group.
func (s *Stream) Told(g Group) { s.faults.told(g) }

// Refuse says that a call was not launched: by the error that it returns if the stream is idle,
// else, since it would have come later, by Synchronize. The owner of an adopted stream waits for it
// without us, so there it is returned always. s.Mu is held.
func (s *Stream) Refuse(g Group, err error) error {
	if s.adopted || s.Quiet() {
		s.Told(g)
		return err
	}
	s.Blame(g, err)
	return nil
}

// Carry notes that kernels of a group are on the stream. s.Mu is held.
func (s *Stream) Carry(g Group) {
	if slices.Contains(s.carries, g) {
		return
	}
	s.carries = slices.DeleteFunc(s.carries, Group.Closing)
	s.carries = append(s.carries, g)
}

// leave is called before a stream captures or ends, after which groups must not record events
// on it. s.Mu is held.
func (s *Stream) leave() error {
	for _, g := range s.carries {
		if err := g.Leave(s, false); err != nil {
			return err
		}
	}
	return nil
}

// detach is leave for a CUDA stream that is given up with its work, for which nobody waits then.
func (s *Stream) detach() {
	for _, g := range s.carries {
		_ = g.Leave(s, true)
	}
}
