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
// call is queueing work. For a stream of another library, it considers only work before the last
// RecordQueued or recordAllWork.
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
// stream, so it queries the event before the capture. The caller must hold s.Mu.
func (s *Stream) query() (done bool, err error) {
	switch {
	case s.closed.Load():
		return true, nil
	case s.Capture != nil:
		return s.Capture.priorWork == nil || s.Capture.priorWork.Done(), nil
	case s.isAdopted:
		return s.queuedEnd.Query()
	}
	err = s.gpu.Query(func(api *cuda.Driver) error {
		done, err = api.StreamQuery(s.CUDA)
		return err
	})
	s.streams.HappensBefore.Load()
	return done, err
}

// Synchronize waits until the stream is idle, but not for work that an adopted stream's owner
// queues after the call.
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
	// Another library can replay calls of these groups on any stream, so every adopted stream
	// returns each fault once.
	for _, g := range s.streams.Groups() {
		if err := g.ReplayFault(); err != nil {
			s.ReportFault(g, err)
		}
	}
	return s.takeFault()
}

func (s *Stream) awaitWork(ctx context.Context) error {
	s.Mu.Lock()
	last := s.lastCall
	wasWaitedFor := s.IsWaitedFor()
	s.Mu.Unlock()
	err := last.await(ctx, s)
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
	if err != nil {
		return fmt.Errorf("synchronizing a stream: %w", err)
	}
	if deviceErr != nil {
		return deviceErr
	}
	// A rank that failed after an earlier wait does not make the call unsuccessful.
	if last.group != nil && !wasWaitedFor {
		if err := last.group.CheckEndedEarly(last.ticket); err != nil {
			s.ReportFault(last.group, err)
			if fault := s.takeFault(); fault != nil {
				return fault
			}
		}
	}
	if s.Mu.TryLock() { // otherwise, a call may be queueing more work
		s.isWaitedFor.Store(s.IdleLocked())
		s.Mu.Unlock()
	}
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
	// The group has failed, and calls s.Abandon if a kernel does not exit. Wait for that, because
	// the caller may queue more work after await.
	select {
	case <-c.group.KernelsEnded():
	case <-ctx.Done():
	case <-time.After(4 * gpu.KernelEndTimeout):
	}
	idleCtx, cancel := context.WithTimeout(ctx, gpu.KernelEndTimeout)
	defer cancel()
	return gpu.Poll(idleCtx, s.Idle)
}

// Abandon replaces the CUDA stream if it is not idle, because a kernel on it does not exit. All
// work and events queued after the kernel are lost.
func (s *Stream) Abandon() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || s.IdleLocked() {
		return
	}
	// On an adopted stream, the unfinished work may be the owner's, and no kernel may be stuck.
	// Memory then stays mapped until the process exits, which is better than a blocked call.
	gpu.Stuck.Store(true)
	if s.isAdopted {
		return
	}
	err := s.gpu.Do(func() error {
		handle, err := s.gpu.CUDA.StreamCreate()
		if err != nil {
			return err
		}
		for _, g := range s.groups {
			_ = g.RecordEvent(s, true)
		}
		s.CUDA, s.hostFuncWord, s.hostFuncCount = handle, nil, 0
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
	return s.close(func() (capturing bool, err error) { return true, nil })
}

// close closes the stream. It calls recordEnd to record an event after all work of the stream.
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
	capturing, err := recordEnd()
	s.keepFirstFault()
	errs = append(errs, err, s.awaitWork(ctx))
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.closed.Load() {
		return errors.Join(errs...)
	}
	switch idle := s.IdleLocked(); {
	case !idle:
		s.closedWhileBusy.Store(true)
		errs = append(errs, s.markUnfinishedLocked())
	case s.hostFuncWord != nil && !capturing:
		s.gpu.Words.Put(s.hostFuncWord)
	}
	s.stopQueries()
	s.closed.Store(true)
	errs = append(errs, s.RecordGroups(nil))
	if !s.isAdopted {
		errs = append(errs, s.gpu.Do(func() error {
			return s.gpu.CUDA.StreamDestroy(s.CUDA)
		}))
	}
	return errors.Join(errs...)
}

// MarkUnfinished keeps the device's memory mapped until the stream's current work has completed.
func (s *Stream) MarkUnfinished() error {
	if !s.Mu.TryLock() {
		s.gpu.AddUnfinished(s.Idle) // the lock's holder may be waiting for other ranks
		return nil
	}
	defer s.Mu.Unlock()
	switch {
	case s.IdleLocked():
		return nil
	case s.Capture != nil:
		s.gpu.AddUnfinished(s.Capture.priorWork.Done)
		return nil
	}
	return s.markUnfinishedLocked()
}

// markUnfinishedLocked is MarkUnfinished for callers that hold s.Mu.
func (s *Stream) markUnfinishedLocked() error {
	end, err := gpu.Get(s.gpu, func() (*Event, error) { return new(Event).RecordAfter(s, true) })
	s.gpu.AddUnfinished(func() bool { return err == nil && end.Done() })
	return err
}
