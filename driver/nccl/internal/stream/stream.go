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

// Stream wraps a CUDA stream. The stream belongs either to this package or to another library. In
// the second case, it is adopted.
type Stream struct {
	streams *Streams
	gpu     *gpu.GPU
	CUDA    cuda.Stream // guarded by Mu

	Mu              ranked.Spin[streamMu]
	Capture         *Graph      // graph being captured after BeginCapture, or nil; guarded by Mu
	closed          atomic.Bool // written with Mu held
	closedWhileBusy atomic.Bool // set if Close left unfinished work
	waitState
	lastCall        // the latest call of a group; guarded by Mu
	launchingGroups // the groups with work on the stream
	// Mu guards the next two fields. The nth host function writes n to hostFuncWord at its end.
	hostFuncCount uint32    // number of host functions so far
	hostFuncWord  *gpu.Word // nil until the first host function
	adoptedState            // zero unless the stream is adopted
	faults                  // holds the error that the next Synchronize returns
}

type waitState struct{ isWaitedFor atomic.Bool } // written with Stream.Mu held

// IsWaitedFor reports whether a caller has waited for all work of the stream and got no error.
func (w *waitState) IsWaitedFor() bool { return w.isWaitedFor.Load() }

// ClearWaitedFor makes IsWaitedFor return false. Call it before more work is queued, with
// Stream.Mu held.
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

// submit runs calls, which makes CUDA calls, unless the stream is closed. It holds the stream's
// lock meanwhile.
func (s *Stream) submit(calls func() error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return err
	}

	return s.gpu.Do(calls)
}

// submitWork runs calls, which queues or records work. On an adopted stream, it sets s.Recording
// while calls runs, and records events before and after the work.
func (s *Stream) submitWork(calls func() error) error {
	return s.submit(func() error {
		if s.isAdopted && s.Capture == nil {
			isCapturing, err := s.IsCapturing()
			if err != nil {
				return err
			}

			s.Recording = isCapturing
			defer func() { s.Recording = false }()
			if err := recordAllGroups(s); err != nil {
				return err
			}
		}

		callsErr := calls()
		recordErr := s.RecordQueued() // even after an error, because some work may be queued
		return errors.Join(callsErr, recordErr)
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

// Refuse handles the error of a group's call that was not launched. If the stream is busy, it
// returns nil, and the next Synchronize returns the error. If the stream is idle, it returns the
// error. On an adopted stream, it always returns the error, because the owner may never call
// Synchronize. The caller must hold s.Mu.
func (s *Stream) Refuse(g Group, err error) error {
	if s.isAdopted || s.IdleLocked() {
		s.MarkReported(g)
		return err
	}

	s.ReportFault(g, err)
	return nil
}

// RecordGroups makes each group with work on the stream record its event now, except the given
// group, which may be nil. A group orders its calls on different streams by this event: a call on
// one stream waits for the event of the previous call on another.
//
// If the event followed other work, the group's calls would wait for that work, too. Call
// RecordGroups therefore before work that may wait for anything else, such as any work on an
// adopted stream. Also call it before the stream is captured or closed. The caller must hold s.Mu.
func (s *Stream) RecordGroups(except Group) error {
	const isAbandoned = false
	for _, g := range s.groups {
		if g == except {
			continue
		}

		if err := g.RecordEvent(s, isAbandoned); err != nil {
			return err
		}
	}

	return nil
}

// recordAllGroups calls RecordGroups without an exception.
func recordAllGroups(s *Stream) error { return s.RecordGroups(nil) }

// RecordQueued records the event queuedEnd on an adopted stream, unless the stream is being
// captured. Call it after work has been queued, with s.Mu held and the CUDA context current.
func (s *Stream) RecordQueued() error {
	isCapturing := s.Recording || s.Capture != nil
	if !s.isAdopted || isCapturing {
		return nil
	}

	return s.queuedEnd.Record(s.CUDA)
}

// recordAllWork records an event after all work on an adopted stream, including the owner's. It
// does nothing on other streams, on closed ones, and during captures. capturing reports whether the
// stream is being captured.
func (s *Stream) recordAllWork() (capturing bool, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil {
		return true, nil
	}

	if !s.isAdopted || s.closed.Load() {
		return false, nil
	}

	return s.recordEndEvent(func() error { return recordAllGroups(s) })
}
