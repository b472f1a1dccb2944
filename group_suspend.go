package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
)

// groupSuspender releases the memory of a group for some time.
//
// The group is active, suspending, suspended or resuming. The state changes with Group.mu held. In
// all states but active, calls are refused: a change of the windows' revision makes kept plans
// stale, so that every call checks the state before it makes a plan.
type groupSuspender struct {
	group *Group
	state atomic.Int32 // poolOpen (active), poolSuspending, poolSuspended or poolResuming
}

// refusal returns the reason why the group refuses calls, or nil. After a fault it returns nil, and
// the call returns the fault.
func (s *groupSuspender) refusal() error {
	if s.state.Load() == poolOpen || s.failed() {
		return nil
	}
	text := fmt.Sprintf("group %s: suspended: call Group.Resume on every rank of it", s.group.id)
	return &refusalError{text, ErrSuspended}
}

// failed reports whether this rank has seen a fault of the group.
func (s *groupSuspender) failed() bool { return s.group.comm.Cause() != nil }

// suspend implements Group.Suspend.
func (s *groupSuspender) suspend(ctx context.Context) (Suspension, error) {
	g := s.group
	comm, ok := g.comm.(driver.SuspendableCommunicator)
	if !ok {
		return Suspension{}, ErrUnsupported
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.state.Load() != poolOpen {
		return Suspension{}, nil
	}
	s.set(poolSuspending)
	capturing, permitCaptures := g.rt.captures.hold()
	defer permitCaptures()
	if err := s.agree(ctx, "suspend group", s.prepare(ctx, comm, capturing)); err != nil {
		s.set(poolOpen)
		return Suspension{}, err
	}
	released, err := comm.Suspend(ctx)
	s.set(poolSuspended)
	if err == nil { // the memory is free once all ranks have unmapped it
		_, err = g.comm.Exchange(ctx, driver.LaneControl, nil)
	}
	return released, g.life.awaitCause(err)
}

// set changes the state and makes plans stale.
func (s *groupSuspender) set(state int32) {
	s.state.Store(state)
	s.group.windows.revise()
}

// prepare returns an error if this rank refuses the suspension.
func (s *groupSuspender) prepare(
	ctx context.Context, comm driver.SuspendableCommunicator, capturing bool,
) error {
	if capturing {
		return ErrCapturing
	}
	if err := unfinishedWork(ctx, s.group.rt); err != nil {
		return err
	}
	return comm.PrepareSuspend()
}

// agree checks that all ranks make the same call, and exchanges refusals. Group.mu is held.
func (s *groupSuspender) agree(ctx context.Context, tag string, refusal error) error {
	if err := s.group.aligner.meet(ctx, &meeting{tag: tag}); err != nil {
		return err
	}
	return agreeOnRefusal(ctx, s.group, refusal)
}

// resume implements Group.Resume.
func (s *groupSuspender) resume(ctx context.Context) error {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.state.Load() == poolOpen {
		return nil
	}
	s.set(poolResuming)
	err := s.agree(ctx, "resume group", nil)
	if err == nil {
		err = g.life.awaitCause(g.comm.(driver.SuspendableCommunicator).Resume(ctx))
	}
	if err != nil {
		s.set(poolSuspended)
		return err
	}
	s.set(poolOpen)
	return nil
}

// suspendedGroup returns an error if a group with a window in the pool is suspended.
func suspendedGroup(all []groupWindow) error {
	i := slices.IndexFunc(all, func(w groupWindow) bool { return w.group.Suspended() })
	if i < 0 {
		return nil
	}
	text := fmt.Sprintf("group %s is suspended: call Group.Resume first", all[i].group.id)
	return &refusalError{text, ErrSuspended}
}

// noteGroup records that a capture contains a call of a group.
func noteGroup(s *Stream, g *Group) {
	if !s.capturing.Load() {
		return
	}
	s.pinning.Lock()
	defer s.pinning.Unlock()
	if s.capturing.Load() && !slices.Contains(s.groups, g) {
		s.groups = append(s.groups, g)
	}
}

// refusalOfGroups returns the refusals of suspended groups.
func refusalOfGroups(groups []*Group) error {
	var errs []error
	for _, g := range groups {
		errs = append(errs, g.suspender.refusal())
	}
	return errors.Join(errs...)
}
