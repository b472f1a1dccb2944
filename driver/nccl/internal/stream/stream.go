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

// Stream is a CUDA stream, a queue of work for the GPU. An adopted stream belongs to another
// library (the owner), which may queue work, capture the stream into a graph, or destroy it at any
// time.
//
// The calls of a group (a communicator) run in order, even on different streams: a call on a new
// stream waits for an event that the group records on its previous stream.
type Stream struct {
	streams *Streams
	gpu     *gpu.GPU
	CUDA    cuda.Stream // guarded by Mu

	Mu              ranked.Spin[streamMu]
	Capture         *Graph      // graph between BeginCapture and EndCapture; guarded by Mu
	closed          atomic.Bool // written with Mu held
	closedWhileBusy atomic.Bool // set if Close left unfinished work
	waitState
	lastCall                  // of a group; guarded by Mu
	launchingGroups           // groups that have made calls on the stream; guarded by Mu
	hostFuncCount   uint32    // number of queued host functions; guarded by Mu
	hostFuncWord    *gpu.Word // number of completed host functions, or nil; guarded by Mu
	adoptedState              // zero unless the stream is adopted
	faults                    // error for the next Synchronize
}

// Handle returns the CUstream.
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

// IsWaitedFor reports whether a caller has waited, without an error, for all work of the stream.
func (w *waitState) IsWaitedFor() bool { return w.isWaitedFor.Load() }

// ClearWaitedFor precedes new work on the stream. The caller must hold Stream.Mu.
func (w *waitState) ClearWaitedFor() {
	if w.isWaitedFor.Load() { // avoids a write in most launches
		w.isWaitedFor.Store(false)
	}
}

// submit runs calls with s.Mu held, or returns an error if the stream is closed.
func (s *Stream) submit(calls func() error) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if err := s.CheckOpen(); err != nil {
		return err
	}

	return s.gpu.Do(calls)
}

// submitWork is submit for calls that queue work. On an adopted stream, it records events before
// and after the work, and sets s.Recording while the owner captures the work.
func (s *Stream) submitWork(calls func() error) error {
	return s.submit(func() error {
		mayOwnerCapture := s.isAdopted && s.Capture == nil
		if mayOwnerCapture {
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
		recordErr := s.RecordQueued() // calls may have queued work before an error
		return errors.Join(callsErr, recordErr)
	})
}

// RecordQueued records queuedEnd after new work on an adopted stream that is not being captured.
// The caller must hold s.Mu, with the CUDA context current.
func (s *Stream) RecordQueued() error {
	isCapturing := s.Recording || s.Capture != nil
	if !s.isAdopted || isCapturing {
		return nil
	}

	return s.queuedEnd.Record(s.CUDA)
}

// RecordGroups makes each group whose previous call is on the stream record its event now. It skips
// the group except, which may be nil. The caller must hold s.Mu.
//
// Otherwise, a group records the event only at its next call on another stream, which then also
// waits for work queued here in between. Use RecordGroups before work that may block, such as any
// work on an adopted stream, and before the stream is captured or closed.
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

func recordAllGroups(s *Stream) error { return s.RecordGroups(nil) }

// recordAllWork records queuedEnd after all work on an open adopted stream, including the owner's.
// During a capture, it only returns true.
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

// Refuse handles the error of a group's call that was not launched. On a busy stream, it returns
// nil and leaves the error to the next Synchronize. It returns the error on an idle stream, and on
// an adopted stream, for which Synchronize may never be called. The caller must hold s.Mu.
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
