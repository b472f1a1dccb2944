package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
)

// groupSuspender implements Group.Suspend and Group.Resume. It is embedded in Group.
type groupSuspender struct {
	group *Group
	// suspendState is poolOpen, poolSuspending, poolSuspended or poolResuming. It changes only while
	// Group.mu is held, by setState.
	suspendState atomic.Int32
}

// refusal returns an error if the group refuses calls because it is suspended. After a fault (an
// error that makes the group fail), it returns nil, because calls then return the fault.
func (s *groupSuspender) refusal() error {
	if s.suspendState.Load() == poolOpen || s.hasFailed() {
		return nil
	}

	text := fmt.Sprintf("group %s is suspended: call its Resume on every rank", s.group.id)
	return &refusalError{text: text, kind: ErrSuspended}
}

func (s *groupSuspender) hasFailed() bool {
	return s.group.comm.Cause() != nil
}

// Suspend releases the group's device memory until Resume. All ranks must call it, after they have
// suspended the pools. Addresses and captured graphs stay valid. With NCCL 2.29.7 or newer,
// Suspend also releases NCCL's memory, which Suspension.Released does not count. A second Suspend
// does nothing.
//
// If a stream of any rank has unfinished work after a second, or a message has not been received,
// all ranks return an ErrBusy that names the rank and the work. During a capture, all ranks return
// ErrCapturing. After these errors, the group remains usable. Other goroutines must not use the
// group or its graphs during Suspend.
//
// While the group is suspended, its calls and graphs return ErrSuspended. The program must neither
// use the communicator of Handle nor replay other libraries' graphs that contain calls of the
// group: on GPUs, that destroys the CUDA context.
func (s *groupSuspender) Suspend(ctx context.Context) (Suspension, error) {
	defer deliverAll(s.group.rt)
	released, err := s.suspend(orBackground(ctx))
	if err != nil {
		err = fmt.Errorf("suspending group %s: %w", s.group.id, err)
	}

	return released, err
}

// Resume allocates the group's memory again, at the same addresses. All ranks must call it. If any
// rank has too little memory, all ranks return an ErrOutOfMemory that names the rank, and the group
// stays suspended. If the group is not suspended, Resume does nothing.
func (s *groupSuspender) Resume(ctx context.Context) error {
	defer deliverAll(s.group.rt)
	if err := s.resume(orBackground(ctx)); err != nil {
		return fmt.Errorf("resuming group %s: %w", s.group.id, err)
	}

	return nil
}

// Suspended reports whether the group is suspended on this rank.
func (s *groupSuspender) Suspended() bool { return s.suspendState.Load() != poolOpen }

func (s *groupSuspender) suspend(ctx context.Context) (Suspension, error) {
	g := s.group
	comm, ok := g.comm.(driver.SuspendableCommunicator)
	if !ok {
		return Suspension{}, ErrUnsupported
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if s.suspendState.Load() != poolOpen { // suspended before
		return Suspension{}, nil
	}

	s.setState(poolSuspending)
	isCapturing, permitCaptures := g.rt.captures.delayCaptures()
	defer permitCaptures()
	err := s.compareAndPrepare(ctx, "suspend group", func() error {
		return s.prepareSuspend(ctx, comm, isCapturing)
	})
	if err != nil {
		s.setState(poolOpen)
		return Suspension{}, err
	}

	released, err := comm.Suspend(ctx)
	s.setState(poolSuspended) // even after an error: the memory may be gone
	if err == nil {
		// Wait for the other ranks: the memory is free once all ranks have unmapped it.
		_, err = g.comm.Exchange(ctx, driver.LaneControl, nil)
	}

	return released, g.life.awaitFault(err)
}

// setState changes the state and makes plans (prepared calls) stale, because a repeated call that
// has a plan does not check the state.
func (s *groupSuspender) setState(state int32) {
	s.suspendState.Store(state)
	s.group.windows.makePlansStale()
}

// prepareSuspend waits for this rank's work and returns an error if the rank cannot be suspended.
func (s *groupSuspender) prepareSuspend(
	ctx context.Context, comm driver.SuspendableCommunicator, isCapturing bool,
) error {
	if isCapturing {
		return ErrCapturing
	}

	streamsLimit := workLimit(s.group.limit.Get())
	if err := awaitAllStreams(ctx, s.group.rt, streamsLimit); err != nil {
		return err
	}

	return comm.PrepareSuspend()
}

// compareAndPrepare checks that all ranks make the same call, which tag identifies, and then calls
// prepare. If prepare fails on some rank, all ranks return its error. Group.mu must be held.
func (s *groupSuspender) compareAndPrepare(
	ctx context.Context, tag string, prepare func() error,
) error {
	if err := s.group.aligner.realignAndCompare(ctx, &sharedCall{tag: tag}); err != nil {
		return err
	}

	prepareErr := prepare()
	return agreeOnRefusal(ctx, s.group, prepareErr)
}

func (s *groupSuspender) resume(ctx context.Context) error {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.suspendState.Load() == poolOpen {
		return nil
	}

	s.setState(poolResuming)
	prepareNothing := func() error { return nil }
	err := s.compareAndPrepare(ctx, "resume group", prepareNothing)
	if err == nil {
		comm := g.comm.(driver.SuspendableCommunicator) // suspend has checked the type
		err = g.life.awaitFault(comm.Resume(ctx))
	}

	if err != nil {
		s.setState(poolSuspended)
		return err
	}

	s.setState(poolOpen)
	return nil
}

// checkNotSuspended returns an error if one of the windows belongs to a suspended group. A pool
// cannot be suspended or resumed then.
func checkNotSuspended(windows []groupWindow) error {
	i := slices.IndexFunc(windows, func(w groupWindow) bool { return w.group.Suspended() })
	if i < 0 {
		return nil
	}

	text := fmt.Sprintf("group %s is suspended: call its Resume first", windows[i].group.id)
	return &refusalError{text: text, kind: ErrSuspended}
}

// recordGroupInCapture records that the stream's capture contains calls of a group. The graph
// checks later that the group is not suspended. If the stream is not being captured, it does
// nothing.
func recordGroupInCapture(s *Stream, g *Group) {
	if !s.capturing.Load() { // this first query avoids the lock
		return
	}

	s.pinning.Lock()
	defer s.pinning.Unlock()
	if s.capturing.Load() && !slices.Contains(s.groups, g) {
		s.groups = append(s.groups, g)
	}
}

// groupRefusals joins the refusals of groups. It returns nil if none is suspended.
func groupRefusals(groups []*Group) error {
	var errs []error
	for _, g := range groups {
		errs = append(errs, g.refusal())
	}

	return errors.Join(errs...)
}
