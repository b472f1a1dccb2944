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
	closed  atomic.Bool // changes with Mu and queryMu held
	left    atomic.Bool // it was closed before its work had ended
	// waited reports whether all work was waited for and went well. Changes with Mu held.
	waited atomic.Bool
	// last is the group that launched here most recently, ticket its collective.
	last      Group            // guarded by Mu
	ticket    uint64           // guarded by Mu
	operation driver.Operation // guarded by Mu
	// functions counts the host functions; word holds the number of the last one that has run.
	functions uint32    // guarded by Mu
	word      *gpu.Word // guarded by Mu; made at the first use
	// groups are the groups whose kernels were launched here.
	groups []Group // guarded by Mu
	// adopted reports whether another library made the stream, and may capture or end it at any time.
	adopted bool
	// queued is the event after what an adopted stream was given here. CUDA is asked about it instead
	// of the stream, which would lose a capture that the owner begins just then. Recorded with Mu
	// held.
	queued Event
	// queryMu is held while CUDA is asked without Mu whether the owner captures, so that Close
	// returns after that: the owner may destroy the stream then. It is taken after Mu.
	queryMu ranked.RWMutex[streamQuery]
	// Recording reports whether the call under way is put into a capture of the owner. Guarded by Mu.
	Recording bool
	faults    faults
}

// NewStream makes a stream.
func (d *Streams) NewStream() (*Stream, error) {
	handle, err := gpu.Get(d.GPU, d.GPU.CUDA.StreamCreate)
	if err != nil {
		return nil, fmt.Errorf("making a stream: %w", err)
	}
	return &Stream{streams: d, gpu: d.GPU, CUDA: handle}, nil
}

// Adopt makes a stream of one that another library has made.
func (d *Streams) Adopt(handle uintptr) (*Stream, error) {
	s := &Stream{
		streams: d, gpu: d.GPU, CUDA: cuda.Stream(handle), adopted: true, queued: Event{streams: d},
	}
	d.GPU.Adopted.Store(true)
	if _, err := s.Captured(); err != nil {
		return nil, fmt.Errorf("adopting stream %#x: %w", handle, err)
	}
	return s, nil
}

// Own returns the stream behind the interface.
func (d *Streams) Own(on driver.Stream) (*Stream, error) {
	if s, ok := on.(*Stream); ok && s != nil && s.streams == d {
		return s, nil
	}
	return nil, errForeign
}

var errForeign = errors.New("the stream is of another device")

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

// submitWork is submit for calls that queue work.
func (s *Stream) submitWork(calls func() error) error {
	return s.submit(func() (err error) {
		if s.adopted && s.Capture == nil {
			if s.Recording, err = s.Captured(); err != nil {
				return err
			}
			defer func() { s.Recording = false }()
			if err = s.RecordGroups(nil); err != nil {
				return err
			}
		}
		return errors.Join(calls(), s.RecordQueued())
	})
}

// BusyAgain notes that the stream gets work without a wait for it. s.Mu is held. The load spares
// most launches a locked instruction.
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

// ReportFault has the next Synchronize return the fault of a group, once.
func (s *Stream) ReportFault(g Group, err error) { s.faults.addOf(g, err) }

// MarkReported notes that the caller knows of the fault of a group.
func (s *Stream) MarkReported(g Group) { s.faults.markReported(g) }

// Refuse says that a call was not launched: by the error that it returns if the stream is idle,
// else, since it would have come later, by Synchronize. The owner of an adopted stream waits for it
// without us, so there it is returned always. s.Mu is held.
func (s *Stream) Refuse(g Group, err error) error {
	if s.adopted || s.IdleLocked() {
		s.MarkReported(g)
		return err
	}
	s.ReportFault(g, err)
	return nil
}

// AddGroup notes that kernels of a group are on the stream. s.Mu is held.
func (s *Stream) AddGroup(g Group) {
	if slices.Contains(s.groups, g) {
		return
	}
	s.groups = append(slices.DeleteFunc(s.groups, kernelsEnded), g)
}

// kernelsEnded reports whether a group launches nothing any more. One that is closing may yet, and
// then records its event on the stream of its launch before.
func kernelsEnded(g Group) bool {
	select {
	case <-g.KernelsEnded():
		return true
	default:
		return false
	}
}

// RecordGroups has groups, but for one, record their events on the stream now: before it captures
// or ends, after which they must not, and before it gets what may wait for something else, for
// which calls of theirs on other streams are not to wait. On an adopted stream that is whatever
// comes next: its owner may have put something there that waits. s.Mu is held.
func (s *Stream) RecordGroups(but Group) error {
	for _, g := range s.groups {
		if g == but {
			continue
		}
		if err := g.RecordEvent(s, false); err != nil {
			return err
		}
	}
	return nil
}

// Adopted reports whether another library made the stream.
func (s *Stream) Adopted() bool { return s.adopted }

// forgetGroups does the work of RecordGroups for a CUDA stream that is abandoned with its work, so
// that no launch waits for it.
func (s *Stream) forgetGroups() {
	for _, g := range s.groups {
		_ = g.RecordEvent(s, true)
	}
}

// Captured reports whether CUDA captures the stream. CUDA does not say it of its default stream
// while another one is captured: then nothing may be asked of that stream either. A stream that is
// closed may have been destroyed by its owner.
func (s *Stream) Captured() (bool, error) {
	s.queryMu.RLock()
	defer s.queryMu.RUnlock()
	if s.closed.Load() {
		return false, nil
	}
	status, err := gpu.Get(s.gpu, func() (cuda.CaptureStatus, error) {
		return s.gpu.CUDA.CaptureStatus(s.CUDA)
	})
	if errors.Is(err, cuda.ErrCaptureImplicit) {
		return true, nil
	}
	return status != cuda.CaptureNone, err
}

// RecordQueued records the event of an adopted stream after what has just been queued there, and
// not put into a capture. s.Mu is held. It is called on a thread of the context.
func (s *Stream) RecordQueued() error {
	if !s.adopted || s.Recording || s.Capture != nil {
		return nil
	}
	return s.queued.Record(s.CUDA)
}

// recordOwners records the event of an adopted stream after all that is queued there, also by its
// owner, and reports whether that cannot be, since the stream is captured.
func (s *Stream) recordOwners() (capturing bool, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || !s.adopted || s.closed.Load() {
		return s.Capture != nil, nil
	}
	return s.recordUncaptured()
}

// recordUncaptured is recordOwners of an adopted stream that is open. s.Mu is held. Its owner may
// begin a capture after the first look, with the point in it, which is asked about only when that
// capture must have ended. The first look is for the default stream, where nothing may be recorded
// during a capture.
func (s *Stream) recordUncaptured() (capturing bool, err error) {
	for {
		if capturing, err = s.Captured(); capturing || err != nil {
			return capturing, err
		}
		at, err := s.streams.NewPoint()
		if err == nil {
			err = s.gpu.Do(func() error { return s.gpu.CUDA.EventRecord(at.Handle, s.CUDA) })
		}
		if err != nil {
			return false, err
		}
		if capturing, err = s.Captured(); capturing || err != nil {
			return capturing, err
		}
		if _, err := at.reached(); !errors.Is(err, cuda.ErrCapturedEvent) {
			err := s.RecordGroups(nil)
			s.queued.set(at)
			return false, err
		}
	}
}

// EventAfter records an event after the work queued on the stream, and returns it: own, or that of
// an adopted stream, which is there and moves on with the stream, unless it is to last. It is for
// groups that have kernels on the stream, which hold a lock of theirs that RecordEvent takes, too:
// so the stream does not capture or end meanwhile. It is called on a thread of the context.
func (s *Stream) EventAfter(own *Event, lasting bool) (*Event, error) {
	switch {
	case !s.adopted:
		own.streams = s.streams
		return own, own.Record(s.CUDA)
	case lasting:
		own.streams = s.streams
		own.share(&s.queued)
		return own, nil
	default:
		return &s.queued, nil
	}
}
