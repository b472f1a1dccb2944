package symmem

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
)

// groupSuspender implements Group.Suspend and Group.Resume. It is embedded in Group.
type groupSuspender struct {
	group        *Group
	suspendState atomic.Int32 // stateOpen, stateSuspending, stateSuspended or stateResuming
}

// Suspended reports whether the group is suspended on this rank.
func (s *groupSuspender) Suspended() bool { return s.suspendState.Load() != stateOpen }

// Suspend releases the group's device memory until Resume. All ranks must call it, after they have
// suspended their pools. Addresses and captured graphs stay valid. With NCCL 2.29.7 or newer,
// Suspend also releases NCCL's memory, which Suspension.Released does not count. A second Suspend
// does nothing.
//
// If a stream of any rank has unfinished work after a second, or a message has not been received,
// all ranks return an ErrBusy that names the rank and the work. During a capture, all ranks return
// ErrCapturing. After these errors, the group remains usable. Other goroutines must not use the
// group or its graphs during Suspend.
//
// While the group is suspended, its calls and graphs return ErrSuspended. On GPUs, using the NCCL
// communicator of Group.Handle, or replaying a graph of another library that contains calls of the
// group, would destroy the CUDA context.
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
	if err := s.prepareAllRanks(ctx, comm, isCapturing); err != nil {
		s.setState(stateOpen)
		return Suspension{}, err
	}

	released, err := comm.Suspend(ctx)
	s.setState(stateSuspended) // even after an error, because the memory may have been released
	if err == nil {
		// The device frees the memory when the last rank has unmapped it, so wait for all ranks.
		_, err = g.comm.Exchange(ctx, driver.LaneControl, nil)
	}

	return released, g.life.awaitFault(err)
}

// prepareAllRanks returns an error on all ranks if any rank cannot suspend the group now. The
// caller must hold Group.mu.
func (s *groupSuspender) prepareAllRanks(
	ctx context.Context, comm driver.SuspendableCommunicator, isCapturing bool,
) error {
	if err := s.compareCalls(ctx, "suspend group"); err != nil {
		return err
	}

	refusal := s.prepareThisRank(ctx, comm, isCapturing)
	return agreeOnRefusal(ctx, s.group, refusal)
}

// compareCalls waits until all ranks have made a call. If their calls differ, it returns an error.
func (s *groupSuspender) compareCalls(ctx context.Context, call string) error {
	return s.group.aligner.realignAndCompare(ctx, &sharedCall{tag: call})
}

// prepareThisRank waits for this rank's queued work. During a capture, it returns ErrCapturing.
func (s *groupSuspender) prepareThisRank(
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

func (s *groupSuspender) resume(ctx context.Context) error {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !s.Suspended() {
		return nil
	}

	s.setState(stateResuming)
	if err := s.allocateAgain(ctx); err != nil {
		s.setState(stateSuspended)
		return err
	}

	s.setState(stateOpen)
	return nil
}

// setState also makes prepared calls stale, because they do not check the state. The caller must
// hold Group.mu.
func (s *groupSuspender) setState(state int32) {
	s.suspendState.Store(state)
	s.group.windows.makePlansStale()
}

// allocateAgain must be called with Group.mu held.
func (s *groupSuspender) allocateAgain(ctx context.Context) error {
	if err := s.compareCalls(ctx, "resume group"); err != nil {
		return err
	}

	var noRefusal error // this rank accepts
	if err := agreeOnRefusal(ctx, s.group, noRefusal); err != nil {
		return err
	}

	comm := s.group.comm.(driver.SuspendableCommunicator) // suspend has checked the type
	return s.group.life.awaitFault(comm.Resume(ctx))
}

// refusal returns an ErrSuspended if the group is suspended. It returns nil for a failed group,
// whose calls return the cause instead.
func (s *groupSuspender) refusal() error {
	isRefusing := s.Suspended() && s.group.comm.Cause() == nil
	if !isRefusing {
		return nil
	}

	text := fmt.Sprintf("group %s is suspended: call its Resume on every rank", s.group.id)
	return &refusalError{text: text, kind: ErrSuspended}
}

// checkNotSuspended returns an error if the group of any window is suspended. While it is, the pool
// with the window cannot be suspended or resumed.
func checkNotSuspended(windows []groupWindow) error {
	i := slices.IndexFunc(windows, func(w groupWindow) bool { return w.group.Suspended() })
	if i < 0 {
		return nil
	}

	text := fmt.Sprintf("group %s is suspended: call its Resume first", windows[i].group.id)
	return &refusalError{text: text, kind: ErrSuspended}
}
