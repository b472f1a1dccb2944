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

// Stream wraps a CUDA stream.
type Stream struct {
	streams *Streams
	gpu     *gpu.GPU
	CUDA    cuda.Stream // guarded by Mu

	Mu              ranked.Spin[streamMu]
	Capture         *Graph      // graph being captured, or nil; guarded by Mu
	closed          atomic.Bool // written with Mu held
	closedWhileBusy atomic.Bool // set if Close left unfinished work
	waitState
	lastCall // guarded by Mu
	launchingGroups
	// Mu guards the next two fields. The nth host function writes n to hostFuncWord at its end.
	hostFuncCount uint32
	hostFuncWord  *gpu.Word // allocated at the first use
	adoptedState
	faults
}

type waitState struct{ isWaitedFor atomic.Bool } // written with Stream.Mu held

// IsWaitedFor reports whether a caller has waited for all work of the stream and got no error.
func (w *waitState) IsWaitedFor() bool { return w.isWaitedFor.Load() }

// ClearWaitedFor makes IsWaitedFor return false. It must be called before more work is queued,
// with Stream.Mu held.
func (w *waitState) ClearWaitedFor() {
	if w.isWaitedFor.Load() { // avoids an atomic write in most launches
		w.isWaitedFor.Store(false)
	}
}

// Handle returns the stream's CUstream for other libraries.
func (s *Stream) Handle() uintptr {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return uintptr(s.CUDA)
}

// Closed reports whether Close has closed the stream.
func (s *Stream) Closed() bool { return s.closed.Load() }

// submit makes CUDA calls for an open stream, with its lock held.
func (s *Stream) submit(calls func() error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return err
	}
	return s.gpu.Do(calls)
}

// submitWork makes calls that queue or record work. On an adopted stream, it also sets s.Recording
// and records events before and after them.
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

// Fail does nothing, because queued work cannot be stopped.
func (s *Stream) Fail(error) {}

// Refuse handles the error of a group's call that was not launched. It returns the error if the
// stream is idle or belongs to another library, which can wait for it without symmem. Otherwise the
// next Synchronize returns the error. The caller must hold s.Mu.
func (s *Stream) Refuse(g Group, err error) error {
	if s.isAdopted || s.IdleLocked() {
		s.MarkReported(g)
		return err
	}
	s.ReportFault(g, err)
	return nil
}

// RecordGroups makes each group with work on the stream, except the given one, record its event
// now. The groups' calls on other streams wait only for these events. RecordGroups must therefore
// be called before work that may wait for anything else, such as any work on an adopted stream, and
// before the stream is captured or closed. The caller must hold s.Mu.
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

// RecordQueued records queuedEnd on an adopted stream, unless the stream is being captured. It
// must be called after work has been queued, with s.Mu held and the CUDA context current.
func (s *Stream) RecordQueued() error {
	if !s.isAdopted || s.Recording || s.Capture != nil {
		return nil
	}
	return s.queuedEnd.Record(s.CUDA)
}

// recordAllWork calls recordEndEvent on an open adopted stream.
func (s *Stream) recordAllWork() (capturing bool, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || !s.isAdopted || s.closed.Load() {
		return s.Capture != nil, nil
	}
	return s.recordEndEvent(func() error { return s.RecordGroups(nil) })
}
