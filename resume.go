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
		return err // nil if the pool is open already
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

// remap maps this rank's memory, if all ranks of the domain agree and have enough memory. If the
// domain has failed, remap maps the memory without asking the other ranks, and returns the fault.
func (s *suspender) remap(ctx context.Context) (isMapped bool, err error) {
	g := s.pool.domain
	if g == nil {
		return s.remapAlone(nil)
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	agreeErr := s.agree(ctx, g, "resume", checkNotSuspended(s.listWindows()))
	if agreeErr == nil {
		return s.remapTogether(ctx, g)
	}

	hasFailed := g.comm.Cause() != nil
	if hasFailed {
		return s.remapAlone(agreeErr)
	}

	return false, agreeErr
}

// remapAlone maps this rank's memory without a domain, or after the domain's fault.
func (s *suspender) remapAlone(fault error) (isMapped bool, err error) {
	held := s.holdSegments()
	defer s.segments.releaseAll(held)
	if refusal := resumeSegments(held); refusal != nil {
		suspendErr := undoResume(held, s.contents)
		return false, errors.Join(fault, refusal, suspendErr)
	}

	return true, fault
}

// remapTogether maps this rank's memory if no rank refuses. The caller must hold Group.mu.
func (s *suspender) remapTogether(ctx context.Context, g *Group) (isMapped bool, err error) {
	held := s.holdSegments()
	defer s.segments.releaseAll(held)
	ownRefusal := resumeSegments(held)
	refusal := agreeOnRefusal(ctx, g, ownRefusal)
	var fault error
	hasFailed := g.comm.Cause() != nil
	if hasFailed { // the ranks could not agree
		refusal, fault = ownRefusal, refusal
	}

	if refusal != nil {
		suspendErr := undoResume(held, s.contents)
		return false, errors.Join(fault, refusal, suspendErr)
	}

	return true, fault
}

// resumeSegments maps the memory of segments again. It stops at the first error.
func resumeSegments(held []*segment) error {
	for _, seg := range held {
		memory, canSuspend := seg.memory.(driver.SuspendableSegment)
		if !canSuspend {
			continue // never suspended: prepare refuses such segments
		}

		if err := memory.Resume(); err != nil {
			return err
		}
	}

	return nil
}

// undoResume suspends the segments that resumeSegments has resumed.
func undoResume(held []*segment, c Contents) error {
	var errs []error
	for _, seg := range held {
		memory := seg.memory.(driver.SuspendableSegment) // prepare has checked the type
		err := memory.PrepareSuspend(c == KeepContents)
		isStillSuspended := errors.Is(err, ErrSuspended)
		if isStillSuspended {
			continue
		}

		if err == nil {
			err = memory.Suspend()
		}

		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// resumeWindows resumes the windows of all groups that have not failed.
func (s *suspender) resumeWindows(ctx context.Context) error {
	var errs []error
	remaining := s.listWindows()
	for len(remaining) > 0 {
		g := remaining[0].group
		count := 1
		for count < len(remaining) && remaining[count].group == g {
			count++
		}

		errs = append(errs, resumeGroupWindows(ctx, g, remaining[:count])...)
		remaining = remaining[count:]
	}

	return joinWithoutDuplicates(errs...)
}

func resumeGroupWindows(ctx context.Context, g *Group, windows []groupWindow) (errs []error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range windows {
		hasFailed := g.comm.Cause() != nil
		if hasFailed {
			break
		}

		window := w.window.(driver.SuspendableWindow) // prepare has checked the type
		if err := window.Resume(ctx); err != nil {
			errs = append(errs, g.life.awaitFault(err))
		}
	}

	return errs
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
