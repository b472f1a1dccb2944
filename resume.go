package symmem

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"symmem/driver"
)

// resume implements Pool.Resume.
func (s *suspender) resume(ctx context.Context) error {
	hasBegun, err := s.beginChange(stateSuspended, stateResuming, stateOpen)
	if !hasBegun {
		return err
	}

	isMapped, mapErr := s.remap(ctx)
	if !isMapped {
		s.state.Store(stateSuspended)
		return mapErr
	}

	windowsErr := s.resumeWindows(ctx)
	s.setRefusing(false)
	s.state.Store(stateOpen)
	s.pool.calls.Open()
	return errors.Join(mapErr, windowsErr)
}

// remap maps this rank's memory, if all ranks agree and have enough memory. Otherwise, isMapped is
// false. If the domain has failed, remap maps the memory without the other ranks, and also returns
// the fault (the error that has made the domain fail).
func (s *suspender) remap(ctx context.Context) (isMapped bool, err error) {
	g := s.pool.domain
	var fault error
	if g != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		agreeErr := s.agree(ctx, g, "resume", checkNotSuspended(s.listWindows()))
		hasFailed := g.comm.Cause() != nil
		if agreeErr != nil && !hasFailed {
			return false, agreeErr
		}

		fault = agreeErr
	}

	held := s.holdSegments()
	defer s.segments.releaseAll(held)
	refusal := resumeSegments(held)
	if g != nil && fault == nil {
		err := agreeOnRefusal(ctx, g, refusal)
		hasFailed := g.comm.Cause() != nil
		if hasFailed {
			fault = err
		} else {
			refusal = err // that of the lowest rank that refuses
		}
	}

	if refusal != nil {
		suspendErr := suspendSegments(held, s.contents)
		return false, errors.Join(fault, refusal, suspendErr)
	}

	return true, fault
}

// resumeSegments maps the memory of segments again. It stops at the first error.
func resumeSegments(held []*segment) error {
	for _, seg := range held {
		memory, canSuspend := seg.memory.(driver.SuspendableSegment)
		if !canSuspend {
			continue
		}

		if err := memory.Resume(); err != nil {
			return err
		}
	}

	return nil
}

// suspendSegments undoes a failed resumeSegments. It skips segments that are still suspended.
func suspendSegments(held []*segment, c Contents) error {
	var errs []error
	for _, seg := range held {
		memory := seg.memory.(driver.SuspendableSegment) // prepare has checked the type
		err := memory.PrepareSuspend(c == KeepContents)
		if errors.Is(err, ErrSuspended) {
			continue
		}

		if err == nil {
			err = memory.Suspend()
		}

		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// resumeWindows resumes the windows of all groups. While it resumes the windows of a group, it
// holds the lock of this group only. It omits groups that have failed.
func (s *suspender) resumeWindows(ctx context.Context) error {
	var errs []error
	var locked *Group // nil before the first window
	defer func() {
		if locked != nil {
			locked.mu.Unlock()
		}
	}()
	for _, w := range s.listWindows() { // sorted by group
		if w.group != locked {
			if locked != nil {
				locked.mu.Unlock()
			}

			locked = w.group
			locked.mu.Lock()
		}

		hasFailed := w.group.comm.Cause() != nil
		if hasFailed {
			continue
		}

		window := w.window.(driver.SuspendableWindow) // prepare has checked the type
		if err := window.Resume(ctx); err != nil {
			errs = append(errs, w.group.life.awaitFault(err))
		}
	}

	return joinWithoutDuplicates(errs...)
}

// groupWindow is the registration of a segment with a group.
type groupWindow struct {
	group   *Group
	segment *segment
	window  driver.Window
}

// listWindows lists the pool's windows, sorted by group and segment, as on all ranks.
func (s *suspender) listWindows() []groupWindow {
	s.mu.Lock()
	defer s.mu.Unlock()
	byGroupKey := func(a, b *membership) int { return cmp.Compare(a.group.key, b.group.key) }
	memberships := slices.SortedFunc(maps.Values(s.registrar.memberships), byGroupKey)
	var windows []groupWindow
	for _, m := range memberships {
		for _, segment := range s.segments.mappedSegments() {
			if w := m.windows[segment]; w != nil {
				windows = append(windows, groupWindow{m.group, segment, w})
			}
		}
	}

	return windows
}

// holdSegments keeps the pool's segments mapped until releaseAll, and returns them. It omits those
// that Trim is about to unmap.
func (s *suspender) holdSegments() []*segment {
	const firstOrdinal = 0
	acceptAll := func(*segment) bool { return true }
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments.holdSegments(firstOrdinal, acceptAll)
}
