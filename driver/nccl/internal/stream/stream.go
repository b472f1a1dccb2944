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

// Stream is a CUDA stream, a queue of work for the GPU. An adopted stream belongs to another
// library, the owner, which may use, capture or destroy the stream at any time.
//
// The calls of a group (a communicator) run in order, even on different streams: before a call on
// another stream, the group records an event on the previous stream, and the call waits for it.
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
	launchingGroups           // guarded by Mu
	hostFuncCount   uint32    // number of queued host functions; guarded by Mu
	hostFuncWord    *gpu.Word // number of completed host functions, or nil; guarded by Mu
	adoptedState              // zero unless the stream is adopted
	faults
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

// RecordGroups makes each group whose previous call is on s, apart from except, record its event.
// Call it before s is captured, closed or given work that may block, such as any work on an adopted
// stream. Otherwise, a group's next call on another stream also waits for that work. The caller
// must hold s.Mu.
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

// recordAllWork is recordAllWorkLocked for callers that do not hold s.Mu.
func (s *Stream) recordAllWork() (capturing bool, err error) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return recordAllWorkLocked(s)
}

// recordAllWorkLocked records queuedEnd after all work on an open adopted stream, including the
// owner's, and the events of all groups. During a capture, it only returns true. The caller must
// hold s.Mu.
func recordAllWorkLocked(s *Stream) (isCapturing bool, err error) {
	if s.Capture != nil {
		return true, nil
	}

	if !s.isAdopted || s.closed.Load() {
		return false, nil
	}

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

		err = recordAllGroups(s)
		s.queuedEnd.setPoint(point) // even after an error, because the point is valid
		return false, err
	}
}

// Refuse handles the error of a group's call that was not launched. It returns the error if s is
// idle, or adopted, because Synchronize may never be called on s. Otherwise, it returns nil and
// leaves the error to the next Synchronize. The caller must hold s.Mu.
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

type waitState struct{ isWaitedFor atomic.Bool } // written with Stream.Mu held

// IsWaitedFor reports whether a caller has waited, without an error, for all work of the stream.
func (w *waitState) IsWaitedFor() bool { return w.isWaitedFor.Load() }

// ClearWaitedFor must be called before new work is queued, with Stream.Mu held.
func (w *waitState) ClearWaitedFor() {
	if w.isWaitedFor.Load() { // avoids a write in most launches
		w.isWaitedFor.Store(false)
	}
}

// launchingGroups have kernels on a stream. The slice is never modified, only replaced, so that
// copies remain valid without Stream.Mu.
type launchingGroups struct{ groups []Group }

// AddGroup adds a group that launches kernels on the stream. The caller must hold Stream.Mu.
func (l *launchingGroups) AddGroup(g Group) {
	if slices.Contains(l.groups, g) {
		return
	}

	l.groups = append(slices.DeleteFunc(slices.Clone(l.groups), haveKernelsEnded), g)
}

// haveKernelsEnded returns false for a group that is being closed, which can still launch kernels.
func haveKernelsEnded(g Group) bool {
	select {
	case <-g.KernelsEnded():
		return true
	default:
		return false
	}
}

// lastCall is the latest collective or message on a stream, or the zero value.
type lastCall struct {
	group     Group
	ticket    uint64
	operation driver.Operation
}

// SetLastCall records a collective or message before it is queued. The caller must hold Stream.Mu.
func (c *lastCall) SetLastCall(g Group, ticket uint64, operation driver.Operation) {
	c.group, c.ticket, c.operation = g, ticket, operation
}

// faults holds the error that the next Synchronize of a stream returns.
type faults struct {
	faultsMu   ranked.Mutex[faultsMu] // guards the fields below
	firstError error                  // since the last takeFault
	firstGroup Group                  // group that failed with firstError, or nil
	keepFirst  bool                   // set by Close; takeFault then keeps firstError
	reported   []Group                // Synchronize or another call has returned their faults
}

// addFault makes the next Synchronize return err, unless an earlier error is pending.
func (f *faults) addFault(err error) {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if f.firstError == nil {
		f.firstError = err
	}
}

// ReportFault makes the next Synchronize return a group's fault, unless an earlier error is pending
// or the stream has already returned a fault of the group.
func (f *faults) ReportFault(g Group, err error) {
	g = g.UserGroup()
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if slices.Contains(f.reported, g) {
		return
	}

	f.reported = append(f.reported, g)
	if f.firstError == nil {
		f.firstError, f.firstGroup = err, g
	}
}

// MarkReported notes that another call than Synchronize returns the group's fault.
func (f *faults) MarkReported(g Group) {
	g = g.UserGroup()
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	if !slices.Contains(f.reported, g) {
		f.reported = append(f.reported, g)
	}

	if f.firstGroup == g {
		f.firstError, f.firstGroup = nil, nil
	}
}

func (f *faults) takeFault() error {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	err := f.firstError
	if !f.keepFirst {
		f.firstError, f.firstGroup = nil, nil
	}

	return err
}

func (f *faults) keepFirstFault() {
	f.faultsMu.Lock()
	defer f.faultsMu.Unlock()
	f.keepFirst = true
}
