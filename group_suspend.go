package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
)

// groupSuspender implements Group.Suspend and Group.Resume.
//
// The state changes only while Group.mu is held. In all states but poolOpen, the group refuses
// calls. A repeated call reuses its plan (the result of its checks) without checking the state, so
// every change of the state makes plans stale.
type groupSuspender struct {
	group *Group
	// suspendState is poolOpen, poolSuspending, poolSuspended or poolResuming.
	suspendState atomic.Int32
}

// refusal returns the reason why the group refuses calls, or nil. After a fault, it returns nil,
// because calls return the fault instead.
func (s *groupSuspender) refusal() error {
	if s.suspendState.Load() == poolOpen || s.hasFailed() {
		return nil
	}
	text := fmt.Sprintf("group %s is suspended: call its Resume on every rank", s.group.id)
	return &refusalError{text, ErrSuspended}
}

func (s *groupSuspender) hasFailed() bool {
	return s.group.comm.Cause() != nil
}

// Suspend releases the group's device memory on all ranks until Resume is called. This memory
// includes exchange memory of symmem's kernels, staging memory of messages and, with NCCL 2.29.7 or
// newer, NCCL's memory. Suspension.Released does not include NCCL's memory. Addresses and captured
// graphs stay valid. Suspend is collective. If the group is already suspended, it does nothing. To
// suspend both pools and the group, suspend the pools first.
//
// If a stream of any rank still has unfinished work after a second, or if a message has not been
// received, all ranks return an ErrBusy that names the rank and the work. If any rank is capturing
// a stream, all ranks return ErrCapturing. In both cases the group remains usable. During Suspend,
// other goroutines must not make calls of the group or launch its graphs.
//
// While the group is suspended, collectives, messages, registrations, SetPath and launches of its
// graphs return ErrSuspended. The program must neither use the communicator of Handle nor replay
// graphs of other libraries that contain calls of the group; on GPUs, such a replay destroys the
// CUDA context.
func (s *groupSuspender) Suspend(ctx context.Context) (Suspension, error) {
	defer deliverAll(s.group.rt)
	released, err := s.suspend(orBackground(ctx))
	if err != nil {
		err = fmt.Errorf("suspending group %s: %w", s.group.id, err)
	}
	return released, err
}

// Resume allocates the memory of a suspended group again, at the same addresses. It is collective.
// If any rank has too little memory, all ranks return an ErrOutOfMemory that names the rank, and
// the group stays suspended. If the group is not suspended, Resume does nothing.
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
	if s.suspendState.Load() != poolOpen {
		return Suspension{}, nil
	}
	s.setState(poolSuspending)
	isCapturing, permitCaptures := g.rt.captures.postpone()
	defer permitCaptures()
	err := s.compareAndPrepare(ctx, "suspend group", func() error {
		return s.prepareSuspend(ctx, comm, isCapturing)
	})
	if err != nil {
		s.setState(poolOpen)
		return Suspension{}, err
	}
	released, err := comm.Suspend(ctx)
	s.setState(poolSuspended)
	if err == nil { // wait until all ranks have unmapped the memory; only then is it free
		_, err = g.comm.Exchange(ctx, driver.LaneControl, nil)
	}
	return released, g.life.awaitFault(err)
}

func (s *groupSuspender) setState(state int32) {
	s.suspendState.Store(state)
	s.group.windows.makePlansStale()
}

func (s *groupSuspender) prepareSuspend(
	ctx context.Context, comm driver.SuspendableCommunicator, isCapturing bool,
) error {
	if isCapturing {
		return ErrCapturing
	}
	limit := workLimit(s.group.limit.Get())
	if err := unfinishedWork(ctx, s.group.rt, limit); err != nil {
		return err
	}
	return comm.PrepareSuspend()
}

// compareAndPrepare checks that all ranks make the same call, and then runs prepare. If prepare
// fails on some rank, all ranks return its error. All ranks have begun the call before prepare
// runs, so prepare finds every message that was sent before the call. The caller must hold
// Group.mu.
func (s *groupSuspender) compareAndPrepare(
	ctx context.Context, tag string, prepare func() error,
) error {
	if err := s.group.aligner.alignAndCompare(ctx, &alignedCall{tag: tag}); err != nil {
		return err
	}
	return agreeOnRefusal(ctx, s.group, prepare())
}

func (s *groupSuspender) resume(ctx context.Context) error {
	g := s.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.suspendState.Load() == poolOpen {
		return nil
	}
	s.setState(poolResuming)
	err := s.compareAndPrepare(ctx, "resume group", func() error { return nil })
	if err == nil {
		err = g.life.awaitFault(g.comm.(driver.SuspendableCommunicator).Resume(ctx))
	}
	if err != nil {
		s.setState(poolSuspended)
		return err
	}
	s.setState(poolOpen)
	return nil
}

func suspendedGroup(windows []groupWindow) error {
	i := slices.IndexFunc(windows, func(w groupWindow) bool { return w.group.Suspended() })
	if i < 0 {
		return nil
	}
	text := fmt.Sprintf("group %s is suspended: call its Resume first", windows[i].group.id)
	return &refusalError{text, ErrSuspended}
}

func recordGroupInCapture(s *Stream, g *Group) {
	if !s.capturing.Load() {
		return
	}
	s.pinning.Lock()
	defer s.pinning.Unlock()
	if s.capturing.Load() && !slices.Contains(s.groups, g) {
		s.groups = append(s.groups, g)
	}
}

func groupRefusals(groups []*Group) error {
	var errs []error
	for _, g := range groups {
		errs = append(errs, g.refusal())
	}
	return errors.Join(errs...)
}
