package stream

import (
	"errors"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Stream wraps a CUDA stream and adds state that CUDA does not keep.
type Stream struct {
	streams *Streams
	gpu     *gpu.GPU
	CUDA    cuda.Stream // guarded by Mu

	Mu              ranked.Spin[streamMu]
	Capture         *Graph      // graph being captured, or nil; guarded by Mu
	closed          atomic.Bool // written with Mu held
	closedWhileBusy atomic.Bool // whether the stream was closed with unfinished work
	waitState
	lastCall // guarded by Mu
	launchingGroups
	// hostFuncCount is the number of host functions queued so far. After the nth function has run,
	// it writes n to hostFuncWord.
	hostFuncCount uint32    // guarded by Mu
	hostFuncWord  *gpu.Word // allocated at the first use; guarded by Mu
	adoptedState
	faults
}

type waitState struct{ isWaitedFor atomic.Bool } // written with Stream.Mu held

// Waited reports whether a caller has waited for all work of the stream and got no error.
func (w *waitState) Waited() bool { return w.isWaitedFor.Load() }

// ClearWaited makes Waited return false. It must be called before more work is queued. The caller
// must hold Stream.Mu.
func (w *waitState) ClearWaited() {
	if w.isWaitedFor.Load() { // avoids an atomic write in most launches
		w.isWaitedFor.Store(false)
	}
}

// Handle returns the stream's CUstream, which other libraries can use.
func (s *Stream) Handle() uintptr {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return uintptr(s.CUDA)
}

// Closed reports whether the stream is closed.
func (s *Stream) Closed() bool { return s.closed.Load() }

func (s *Stream) submit(calls func() error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return err
	}
	return s.gpu.Do(calls)
}

func (s *Stream) submitWork(calls func() error) error {
	return s.submit(func() (err error) {
		if s.isAdopted && s.Capture == nil {
			if s.Recording, err = s.IsCapturing(); err != nil {
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

// CheckOpen returns an error if the stream is closed. The caller must hold s.Mu.
func (s *Stream) CheckOpen() error {
	if s.closed.Load() {
		return fmt.Errorf("stream: %w", driver.ErrClosed)
	}
	return nil
}

// Fail does nothing, because work that is already queued on a GPU cannot be stopped.
func (s *Stream) Fail(error) {}

// Refuse handles the error of a group's call that was not launched. It returns the error if the
// stream is idle, or if another library owns the stream and can thus wait for it without symmem.
// Otherwise Refuse returns nil, and the next Synchronize returns the error. The caller must hold
// s.Mu.
func (s *Stream) Refuse(g Group, err error) error {
	if s.isAdopted || s.IdleLocked() {
		s.MarkReported(g)
		return err
	}
	s.ReportFault(g, err)
	return nil
}

// RecordGroups makes each group that has work on the stream, other than except, record its event
// now. Groups record events only when needed, but cannot do so once the stream is capturing or
// closed. The caller must hold s.Mu.
//
// RecordGroups must be called before work that may wait for something other than calls of these
// groups, so that the groups' calls on other streams do not wait for that work. On an adopted
// stream, any work may be of this kind.
func (s *Stream) RecordGroups(except Group) error {
	for _, g := range s.groups {
		if g == except {
			continue
		}
		if err := g.RecordEvent(s, false); err != nil {
			return err
		}
	}
	return nil
}

// RecordQueued records queuedEnd on an adopted stream, unless the stream is being captured. It must
// be called after work has been queued. The caller must hold s.Mu, and the CUDA context must be
// current.
func (s *Stream) RecordQueued() error {
	if !s.isAdopted || s.Recording || s.Capture != nil {
		return nil
	}
	return s.queuedEnd.Record(s.CUDA)
}

// recordAllWork records queuedEnd after all work on an adopted stream, including the owner's,
// unless the stream is being captured.
func (s *Stream) recordAllWork() (capturing bool, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || !s.isAdopted || s.closed.Load() {
		return s.Capture != nil, nil
	}
	return s.recordEndEvent(func() error { return s.RecordGroups(nil) })
}
