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
// library, the owner, which may use, capture or destroy the stream at any time.
//
// The calls of a group (a communicator) run in order, even on different streams: when a group
// changes streams, it records an event on the previous stream, and its next call waits for the
// event.
type Stream struct {
	streams *Streams
	gpu     *gpu.GPU
	CUDA    cuda.Stream // guarded by Mu

	Mu              ranked.Spin[streamMu]
	Capture         *Graph      // graph between BeginCapture and EndCapture; guarded by Mu
	closed          atomic.Bool // written with Mu held
	closedWhileBusy atomic.Bool // Close has left unfinished work
	waitState
	lastCall                  // guarded by Mu
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

// submitWork is submit for calls that queue work. On an adopted stream, it also records the events
// of all groups before the work and queuedEnd after the work. While it queues work into a capture
// of the owner, s.Recording is true.
func (s *Stream) submitWork(calls func() error) error {
	return s.submit(func() error {
		isCapturedBySymmem := s.Capture != nil
		if s.isAdopted && !isCapturedBySymmem {
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

// RecordQueued records queuedEnd after new work on an adopted stream, except during a capture. The
// caller must hold s.Mu, and the CUDA context must be current.
func (s *Stream) RecordQueued() error {
	isCapturing := s.Recording || s.Capture != nil
	if !s.isAdopted || isCapturing {
		return nil
	}

	return s.queuedEnd.Record(s.CUDA)
}

// RecordGroups makes each group whose previous call is on s record its event. except, which may be
// nil, is skipped. Call RecordGroups before s is captured, closed or given work that may block,
// such as any work on an adopted stream. A group that records its event later, at its next call on
// another stream, would also wait for the work in between. The caller must hold s.Mu.
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

	return recordEndEvent(s)
}

// recordEndEvent records the events of all groups, and then moves queuedEnd behind all work on an
// adopted stream, including the owner's. During a capture, it does nothing and returns true. The
// caller must hold s.Mu.
func recordEndEvent(s *Stream) (isCapturing bool, err error) {
	for {
		var point *Point
		point, isCapturing, err = s.recordPoint()
		if isCapturing || err != nil {
			return isCapturing, err
		}

		_, queryErr := point.isReached()
		isCapturedPoint := errors.Is(queryErr, cuda.ErrCapturedEvent)
		if isCapturedPoint { // by a capture that began and ended during recordPoint
			continue
		}

		// The next query of queuedEnd returns other errors of the query.
		err = recordAllGroups(s)
		s.queuedEnd.setPoint(point) // even after an error, because the point is valid
		return false, err
	}
}

// Refuse handles the error of a group's call that was not launched. On a busy stream, it leaves the
// error to the next Synchronize and returns nil. On an idle stream, it returns the error, as on an
// adopted stream, for which Synchronize may never be called. The caller must hold s.Mu.
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
