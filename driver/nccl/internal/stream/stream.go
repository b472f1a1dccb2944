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

// Stream wraps a CUDA stream, a queue of work for the GPU. Most streams belong to this package. An
// adopted stream belongs to another library, its owner, which also queues work on it. The owner can
// destroy the stream or begin a capture at any time. In a capture, CUDA adds new work to a graph
// instead of running it.
//
// A group (a communicator) makes calls on streams. Each call runs after the group's previous call.
// If that was on another stream, the group records an event there, and the new call waits for the
// event.
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
	launchingGroups // the groups that have made calls on the stream; guarded by Mu
	// Mu guards the next two fields. At its end, the nth host function writes n to the word.
	hostFuncCount uint32    // number of host functions so far
	hostFuncWord  *gpu.Word // nil until the first host function
	adoptedState            // zero unless the stream is adopted
	faults                  // holds the error that the next Synchronize returns
}

// Handle returns the stream's CUstream for other libraries.
func (s *Stream) Handle() uintptr {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return uintptr(s.CUDA)
}

// Closed reports whether Close has closed the stream.
func (s *Stream) Closed() bool { return s.closed.Load() }

// CheckOpen returns an error if the stream is closed. The caller must hold s.Mu.
func (s *Stream) CheckOpen() error {
	if s.closed.Load() {
		return fmt.Errorf("stream: %w", driver.ErrClosed)
	}

	return nil
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

// submit runs calls, which makes CUDA calls, unless the stream is closed. It holds s.Mu meanwhile.
func (s *Stream) submit(calls func() error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return err
	}

	return s.gpu.Do(calls)
}

// submitWork is submit for calls that queue work. On an adopted stream, groups record their events
// before the work, and the stream's event queuedEnd is recorded after it. s.Recording is set while
// calls adds work to a capture of the owner.
func (s *Stream) submitWork(calls func() error) error {
	return s.submit(func() error {
		mayOwnerBeCapturing := s.isAdopted && s.Capture == nil
		if mayOwnerBeCapturing {
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

// RecordQueued records the event queuedEnd on an adopted stream, unless the stream is being
// captured. Call it after work has been queued, with s.Mu held and the CUDA context current.
func (s *Stream) RecordQueued() error {
	isCapturing := s.Recording || s.Capture != nil
	if !s.isAdopted || isCapturing {
		return nil
	}

	return s.queuedEnd.Record(s.CUDA)
}

// RecordGroups makes each group whose previous call is on the stream record its event now, except
// the given group, which may be nil.
//
// Usually, the group records the event when it makes a call on another stream. If other work has
// been queued here before that, the call waits for that work, too. Therefore, call RecordGroups
// before work that may wait for anything else, such as any work on an adopted stream. Also call it
// before the stream is captured or closed. The caller must hold s.Mu.
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

// recordAllWork records queuedEnd after all work on an adopted stream, including the owner's. It
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

// Fail does nothing, because queued work cannot be stopped.
func (s *Stream) Fail(error) {}
