package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
)

// Suspend releases a group's memory until Resume. A group begins in stateOpen. Suspend changes the
// state to stateSuspending, while the ranks agree to release the memory, and then to
// stateSuspended. But if rank 1, for example, has unfinished work, no rank releases memory, and the
// state becomes stateOpen again. Resume changes the state to stateResuming, while it allocates the
// memory, and then to stateOpen or, after an error, to stateSuspended.

// groupSuspender implements Group.Suspend and Group.Resume. It is embedded in Group.
type groupSuspender struct {
	group *Group
	// suspendState is one of the four states. It changes only in setState, while Group.mu is held.
	suspendState atomic.Int32
}

// setState changes the state, and makes the group's plans (prepared calls) stale. Otherwise, a
// repeated call could use its plan without a check of the state.
func (s *groupSuspender) setState(state int32) {
	s.suspendState.Store(state)
	s.group.windows.makePlansStale()
}

// Suspended reports whether the group is suspended on this rank.
func (s *groupSuspender) Suspended() bool { return s.suspendState.Load() != stateOpen }

// refusal returns an error if the group refuses calls because it is suspended. After a fault (an
// error that makes the group fail), it returns nil, because calls then return the fault.
func (s *groupSuspender) refusal() error {
	if !s.Suspended() || s.hasFailed() {
		return nil
	}

	text := fmt.Sprintf("group %s is suspended: call its Resume on every rank", s.group.id)
	return &refusalError{text: text, kind: ErrSuspended}
}

func (s *groupSuspender) hasFailed() bool { return s.group.comm.Cause() != nil }

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

// suspend is Suspend without the text that begins its errors.
func (s *groupSuspender) suspend(ctx context.Context) (Suspension, error) {
	g := s.group
	comm, canSuspend := g.comm.(driver.SuspendableCommunicator)
	if !canSuspend {
		return Suspension{}, ErrUnsupported
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if s.Suspended() {
		return Suspension{}, nil
	}

	s.setState(stateSuspending)
	isCapturing, permitCaptures := g.rt.captures.delayCaptures()
	defer permitCaptures()
	err := s.compareAndPrepare(ctx, "suspend group", func() error {
		return s.prepareSuspend(ctx, comm, isCapturing)
	})
	if err != nil {
		s.setState(stateOpen)
		return Suspension{}, err
	}

	released, err := comm.Suspend(ctx)
	s.setState(stateSuspended) // even after an error: the memory may be gone
	if err == nil {
		// Wait for the other ranks: the memory is free once all ranks have unmapped it.
		_, err = g.comm.Exchange(ctx, driver.LaneControl, nil)
	}

	return released, g.life.awaitFault(err)
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

// prepareSuspend waits for this rank's work. It returns an error if the rank cannot be suspended.
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

// resume is Resume without the text that begins its errors.
func (s *groupSuspender) resume(ctx context.Context) error {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !s.Suspended() {
		return nil
	}

	s.setState(stateResuming)
	err := s.allocateAgain(ctx)
	if err != nil {
		s.setState(stateSuspended)
		return err
	}

	s.setState(stateOpen)
	return nil
}

// allocateAgain allocates the memory that suspend has released. Group.mu must be held.
func (s *groupSuspender) allocateAgain(ctx context.Context) error {
	prepareNothing := func() error { return nil }
	err := s.compareAndPrepare(ctx, "resume group", prepareNothing)
	if err != nil {
		return err
	}

	comm := s.group.comm.(driver.SuspendableCommunicator) // suspend has checked the type
	return s.group.life.awaitFault(comm.Resume(ctx))
}

// checkNotSuspended returns an error if one of a pool's windows belongs to a suspended group. Then
// the pool cannot be suspended or resumed. A window is memory of the pool that a group has
// registered.
func checkNotSuspended(windows []groupWindow) error {
	i := slices.IndexFunc(windows, func(w groupWindow) bool { return w.group.Suspended() })
	if i < 0 {
		return nil
	}

	text := fmt.Sprintf("group %s is suspended: call its Resume first", windows[i].group.id)
	return &refusalError{text: text, kind: ErrSuspended}
}

// recordGroupInCapture records that a stream's capture contains calls of a group. When the captured
// graph is launched, the group must not be suspended. If the stream is not being captured,
// recordGroupInCapture does nothing.
func recordGroupInCapture(s *Stream, g *Group) {
	if !s.capturing.Load() { // usually avoids the lock
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
