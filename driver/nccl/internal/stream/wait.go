package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// Idle reports whether all work has completed or the device has failed. It returns false while a
// call is queueing work. For an adopted stream (a stream of another library), it considers only
// work before the last RecordQueued or recordAllWork.
func (s *Stream) Idle() bool {
	if !s.Mu.TryLock() {
		return false
	}

	defer s.Mu.Unlock()
	return s.IdleLocked()
}

// IdleLocked is Idle for callers that hold s.Mu.
func (s *Stream) IdleLocked() bool { return hasEnded(s.query()) }

// query reports whether all work has completed. During a capture, CUDA allows no query of the
// stream. In this case, query reports whether the work before the capture has completed. The caller
// must hold s.Mu.
func (s *Stream) query() (done bool, err error) {
	switch {
	case s.closed.Load():
		return true, nil
	case s.Capture != nil:
		priorWork := s.Capture.priorWork
		return priorWork == nil || priorWork.Done(), nil
	case s.isAdopted:
		return s.queuedEnd.Query() // a query of the stream could disturb the owner's captures
	}

	err = s.gpu.Query(func(api *cuda.Driver) error {
		done, err = api.StreamQuery(s.CUDA)
		return err
	})
	s.streams.HappensBefore.Load() // see Streams.HappensBefore
	return done, err
}

// Synchronize waits until the stream is idle, and returns and clears its error. On an adopted
// stream, it does not wait for work that the owner queues after the call.
func (s *Stream) Synchronize(ctx context.Context) error {
	capturing, err := s.recordAllWork()
	if capturing {
		err = driver.ErrCapturing
	}

	if err != nil {
		return fmt.Errorf("synchronizing a stream: %w", err)
	}

	if err := s.awaitWork(ctx); err != nil {
		return err
	}

	if !s.isAdopted {
		return nil
	}

	// Another library can capture calls of groups, and replay them on any of its streams. Every
	// adopted stream therefore returns the fault of each such group once.
	for _, g := range s.streams.Groups() {
		if err := g.ReplayFault(); err != nil {
			s.ReportFault(g, err)
		}
	}

	return s.takeFault()
}

// awaitWork waits until the stream is idle. It returns the stream's pending fault, the error of the
// wait, or the error of the device, in this order of preference.
func (s *Stream) awaitWork(ctx context.Context) error {
	s.Mu.Lock()
	last := s.lastCall
	wasWaitedFor := s.IsWaitedFor()
	s.Mu.Unlock()
	waitErr := last.await(ctx, s)
	s.Mu.Lock()
	groups := s.groups
	_, deviceErr := s.query()
	s.Mu.Unlock()
	for _, g := range groups {
		// KernelFault makes the group fail, so that its work does not count as successful.
		if fault := g.KernelFault(); fault != nil {
			s.ReportFault(g, fault)
		}
	}

	if fault := s.takeFault(); fault != nil {
		return fault
	}

	if waitErr != nil {
		return fmt.Errorf("synchronizing a stream: %w", waitErr)
	}

	if deviceErr != nil {
		return deviceErr
	}

	// If the stream was already waited for, its last call was successful then. A rank that has
	// failed since does not change this.
	if last.group != nil && !wasWaitedFor {
		if err := last.group.CheckEndedEarly(last.ticket); err != nil {
			s.ReportFault(last.group, err)
			// There is no fault if the stream has already returned one of this group.
			if fault := s.takeFault(); fault != nil {
				return fault
			}
		}
	}

	s.Mu.Lock()
	s.isWaitedFor.Store(s.lastCall == last && s.IdleLocked()) // no goroutine has queued more work
	s.Mu.Unlock()
	return nil
}

// await waits for the work of s, whose latest call is c.
func (c *lastCall) await(ctx context.Context, s *Stream) error {
	if c.group == nil || s.Idle() {
		return gpu.Poll(ctx, s.Idle)
	}

	err := c.group.Await(ctx, s, c.ticket, c.operation)
	if err == nil || ctx.Err() != nil {
		return err
	}

	// The group has failed. It makes its kernels exit, and calls s.Abandon if one does not. Wait
	// for that, because the caller may queue more work after await.
	select {
	case <-c.group.KernelsEnded():
	case <-ctx.Done():
	case <-time.After(4 * gpu.KernelEndTimeout):
	}

	idleCtx, cancel := context.WithTimeout(ctx, gpu.KernelEndTimeout)
	defer cancel()
	return gpu.Poll(idleCtx, s.Idle)
}

// Abandon replaces the CUDA stream by a new one, unless it is idle. It is called after a kernel on
// the stream did not exit in time. All work and events queued after the kernel are lost.
//
// An adopted stream cannot be replaced. Its unfinished work may be the owner's, and perhaps no
// kernel is stuck. The device's memory stays mapped anyway until the process exits, because a call
// that unmaps it could block.
func (s *Stream) Abandon() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || s.IdleLocked() {
		return
	}

	gpu.Stuck.Store(true)
	if s.isAdopted {
		return
	}

	err := s.gpu.Do(func() error {
		handle, err := s.gpu.CUDA.StreamCreate()
		if err != nil {
			return err
		}

		const isAbandoned = true
		for _, g := range s.groups {
			_ = g.RecordEvent(s, isAbandoned) // only drops the event
		}

		s.CUDA = handle
		s.hostFuncWord = nil // the old stream may still use the word, so it is leaked
		s.hostFuncCount = 0
		return nil
	})
	if err != nil {
		s.addFault(fmt.Errorf("abandoning a stream: %w", err))
	}
}

// Close ends the stream's capture and waits for its work, for at most twice the longest timeout of
// the device and its groups. The owner of an adopted stream can then destroy it.
func (s *Stream) Close() error { return s.close(s.recordAllWork) }

// Drop closes an adopted stream without querying it, because the owner may have destroyed it.
func (s *Stream) Drop() error {
	// With capturing set, close keeps the word for which queued work may wait.
	return s.close(func() (capturing bool, err error) { return true, nil })
}

// close closes the stream. It calls recordEnd to record an event after all work of the stream.
// recordEnd records nothing if the stream is being captured, and reports this.
func (s *Stream) close(recordEnd func() (capturing bool, err error)) error {
	s.Mu.Lock()
	if s.closed.Load() {
		s.Mu.Unlock()
		return nil
	}

	capture := s.Capture
	s.Mu.Unlock()
	var errs []error
	if capture != nil {
		graph, err := s.EndCapture()
		if err == nil {
			err = graph.Close()
		}

		errs = append(errs, err)
	}

	timeout := gpu.CloseTimeout(2 * s.streams.LongestTimeout())
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	capturing, recordErr := recordEnd()
	s.keepFirstFault() // concurrent calls of Synchronize return it, too
	waitErr := s.awaitWork(ctx)
	errs = append(errs, recordErr, waitErr)
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.closed.Load() { // by a concurrent call
		return errors.Join(errs...)
	}

	if !s.IdleLocked() {
		s.closedWhileBusy.Store(true)
		unfinishedErr := s.markUnfinishedLocked()
		errs = append(errs, unfinishedErr)
	} else if s.hostFuncWord != nil && !capturing {
		s.gpu.Words.Put(s.hostFuncWord)
	}

	s.stopQueries()
	s.closed.Store(true)
	groupsErr := recordAllGroups(s)
	errs = append(errs, groupsErr)
	if !s.isAdopted {
		destroyErr := s.gpu.Do(func() error { return s.gpu.CUDA.StreamDestroy(s.CUDA) })
		errs = append(errs, destroyErr)
	}

	return errors.Join(errs...)
}

// MarkUnfinished keeps the device's memory mapped until the stream's current work has completed.
func (s *Stream) MarkUnfinished() error {
	if !s.Mu.TryLock() {
		// The lock's holder may be waiting for other ranks, so do not wait for the lock.
		s.gpu.AddUnfinished(s.Idle)
		return nil
	}

	defer s.Mu.Unlock()
	switch {
	case s.IdleLocked():
		return nil
	case s.Capture != nil:
		// priorWork is not nil: without it, the stream would be idle.
		s.gpu.AddUnfinished(s.Capture.priorWork.Done)
		return nil
	}

	return s.markUnfinishedLocked()
}

// markUnfinishedLocked is MarkUnfinished for callers that hold s.Mu. After an error, the memory
// stays mapped forever, because the end of the work is unknown.
func (s *Stream) markUnfinishedLocked() error {
	end := new(Event)
	err := s.gpu.Do(func() error { return end.RecordAfter(s) })
	s.gpu.AddUnfinished(func() bool { return err == nil && end.Done() })
	return err
}
