package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// Idle reports whether all work is done; of an adopted stream, what RecordQueued and recordOwners
// have marked. It does not wait for a call that is queueing some: then the stream is not idle.
// Errors of the device count as done: nothing else will come.
func (s *Stream) Idle() bool {
	if !s.Mu.TryLock() {
		return false
	}
	defer s.Mu.Unlock()
	return s.IdleLocked()
}

// IdleLocked is Idle with s.Mu held. CUDA must not be asked about a stream that captures, but may
// be about an event that was recorded there before.
func (s *Stream) IdleLocked() bool {
	switch {
	case s.closed.Load():
		return true
	case s.Capture != nil:
		return s.Capture.before == nil || s.Capture.before.Done()
	}
	done, err := s.query()
	return done || err != nil
}

// query asks CUDA whether all work is done. s.Mu is held.
func (s *Stream) query() (done bool, err error) {
	if s.adopted {
		return s.queued.Query()
	}
	err = s.gpu.With(func(gpu *cuda.Driver) error {
		done, err = gpu.StreamQuery(s.CUDA)
		return err
	})
	s.streams.Order.Load()
	return done, err
}

// Synchronize waits until the stream is idle; what an owner of it queues meanwhile is not waited
// for.
func (s *Stream) Synchronize(ctx context.Context) error {
	capturing, err := s.recordOwners()
	if capturing {
		err = driver.ErrCapturing
	}
	if err != nil {
		return fmt.Errorf("synchronizing a stream: %w", err)
	}
	if err := s.finish(ctx); err != nil {
		return err
	}
	return s.replayFault()
}

// finish waits for the work and reports the first fault.
func (s *Stream) finish(ctx context.Context) error {
	s.Mu.Lock()
	c, ticket, operation := s.last, s.ticket, s.operation
	s.Mu.Unlock()
	err := s.await(ctx, c, ticket, operation)
	s.failReported()
	if fault := s.faults.take(); fault != nil {
		return fault
	}
	if err != nil {
		return fmt.Errorf("synchronizing a stream: %w", err)
	}
	if err := s.deviceError(); err != nil {
		return err
	}
	if c != nil {
		if err := c.EndedEarly(ticket); err != nil {
			s.ReportFault(c, err)
			if fault := s.faults.take(); fault != nil {
				return fault
			}
		}
	}
	if s.Mu.TryLock() {
		s.waited.Store(s.IdleLocked())
		s.Mu.Unlock()
	}
	return nil
}

// await waits for the stream's work. If a communicator has work here, the wait checks the peers
// with its ranks; that of other communicators is seen by their watchers.
func (s *Stream) await(
	ctx context.Context, c Group, ticket uint64, operation driver.Operation,
) error {
	if c == nil || s.Idle() {
		return gpu.Poll(ctx, s.Idle)
	}
	if err := c.Await(ctx, s, ticket, operation); err == nil || ctx.Err() != nil {
		return err
	}
	// The communicator has failed, and its kernels are being ended. A stream with a kernel that does
	// not end is abandoned with everything queued on it, so the caller, who will queue more, gets the
	// fault after that. It gets the fault even if the stream has other work under way.
	select {
	case <-c.KernelsEnded():
	case <-ctx.Done():
	case <-time.After(4 * gpu.EndingTime):
	}
	ended, cancel := context.WithTimeout(ctx, gpu.EndingTime)
	defer cancel()
	return gpu.Poll(ended, s.Idle)
}

// Abandon switches to another CUDA stream if the present one has a kernel that does not end. It
// drops the work queued there with the kernel, and the events that were recorded after it.
func (s *Stream) Abandon() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Capture != nil || s.IdleLocked() {
		return
	}
	// Work of the owner's that takes longer than kernels get to end looks the same. Then memory
	// stays mapped and communicators stay until the process ends, which is better than a call that
	// hangs.
	gpu.Stuck.Store(true)
	if s.adopted {
		return // streams of other libraries are not ours to replace
	}
	err := s.gpu.Do(func() error {
		handle, err := s.gpu.CUDA.StreamCreate()
		if err == nil {
			s.forgetGroups()
			s.CUDA, s.word, s.functions = handle, nil, 0
		}
		return err
	})
	if err != nil {
		s.faults.add(fmt.Errorf("giving up a stream: %w", err))
	}
}

// deviceError reports what CUDA says of an idle stream.
func (s *Stream) deviceError() error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.closed.Load() || s.Capture != nil {
		return nil
	}
	_, err := s.query()
	return err
}

// failReported fails the groups whose kernels have reported a fault: the stream must not be taken
// for done well.
func (s *Stream) failReported() {
	s.Mu.Lock()
	carries := slices.Clone(s.groups)
	s.Mu.Unlock()
	for _, c := range carries {
		if err := c.Reported(); err != nil {
			s.ReportFault(c, err)
		}
	}
}

// replayFault returns the fault of a group that has failed, whose calls the owner of the stream may
// have replayed here, once: it may replay what it has captured on any of its streams.
func (s *Stream) replayFault() error {
	if !s.adopted {
		return nil
	}
	for _, g := range s.streams.Groups() {
		if err := g.ReplayFault(); err != nil {
			s.ReportFault(g, err)
		}
	}
	return s.faults.take()
}

// Close waits for the work, as long as the device's timeout allows, and ends a capture. An adopted
// stream is left to its owner, and CUDA is not asked about it any more.
func (s *Stream) Close() error { return s.close(s.recordOwners) }

// Drop closes an adopted stream without a question about it, since it may be gone.
func (s *Stream) Drop() error {
	return s.close(func() (captured bool, err error) { return true, nil })
}

// close is Close once the last question about an adopted stream was asked.
func (s *Stream) close(ask func() (captured bool, err error)) error {
	s.Mu.Lock()
	if s.closed.Load() {
		s.Mu.Unlock()
		return nil
	}
	capture := s.Capture
	s.Mu.Unlock()
	var errs []error
	if capture != nil {
		g, err := s.EndCapture()
		if err == nil {
			err = g.Close()
		}
		errs = append(errs, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), gpu.ClosingTime(2*s.gpu.Timeout))
	defer cancel()
	captured, err := ask()
	errs = append(errs, err, s.finish(ctx))
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.closed.Load() {
		return errors.Join(errs...)
	}
	switch quiet := s.IdleLocked(); {
	case !quiet:
		s.left.Store(true)
		errs = append(errs, s.leaveWork())
	case s.word != nil && !captured:
		s.gpu.Words.Put(s.word)
	}
	s.queryMu.Lock()
	s.closed.Store(true)
	s.queryMu.Unlock()
	errs = append(errs, s.RecordGroups(nil))
	if !s.adopted {
		errs = append(errs, s.gpu.Do(func() error {
			return s.gpu.CUDA.StreamDestroy(s.CUDA)
		}))
	}
	return errors.Join(errs...)
}

// Leave has the device keep what the work on the stream may use until that has ended, whatever the
// stream is given later.
func (s *Stream) Leave() error {
	if !s.Mu.TryLock() {
		s.gpu.Leave(s.Idle) // a call may wait for other ranks with the lock
		return nil
	}
	defer s.Mu.Unlock()
	switch {
	case s.IdleLocked():
		return nil
	case s.Capture != nil:
		s.gpu.Leave(s.Capture.before.Done)
		return nil
	}
	return s.leaveWork()
}

// leaveWork is Leave of a stream that is not idle and does not capture. s.Mu is held.
func (s *Stream) leaveWork() error {
	end, err := gpu.Get(s.gpu, func() (*Event, error) { return s.EventAfter(&Event{}, true) })
	s.gpu.Leave(func() bool { return err == nil && end.Done() })
	return err
}
