package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// owner implements the methods that streams and messages need of their group. The group's cause,
// stored by the plane, is the error with which it has failed, or driver.ErrClosed.
type owner struct {
	gpu      *gpu.GPU
	cfg      *driver.GroupConfig
	plane    control.Plane // connects the ranks outside NCCL
	history  *history
	direct   *directPath // runs symmem's own kernels
	faults   *faults
	stages   *stages
	recorder *recorder
	teardown *teardown

	waitPool sync.Pool // of *collectiveWait
}

var (
	_ stream.Group = (*owner)(nil)
	_ p2p.Owner    = (*owner)(nil)
)

// Await waits until stream s is idle. ticket is the number of the last collective. operation is
// that of the last collective or message. Errors other than the end of ctx make the group fail.
func (o *owner) Await(
	ctx context.Context, s *stream.Stream, ticket uint64, operation driver.Operation,
) error {
	w, ok := o.waitPool.Get().(*collectiveWait)
	if ok {
		w.planeWait.Ticket, w.planeWait.Operation = ticket, operation
	} else {
		w = o.faults.newCollectiveWait(ticket, operation)
		w.planeWait.Done = w.isStreamIdle
	}

	w.stream = s
	err := o.plane.Await(ctx, w.planeWait)
	o.waitPool.Put(w)
	if err != nil && o.plane.Cause() != nil {
		o.teardown.begin()
	}

	return err
}

func (o *owner) KernelsEnded() <-chan struct{} { return o.stages.kernelsEnded }

// KernelFault returns nil unless one of symmem's own kernels has reported a fault. A fault makes
// the group and its two-level group, if any, fail. KernelFault then returns the cause.
func (o *owner) KernelFault() error {
	cause := o.faults.checkKernels()
	if cause == nil {
		return nil
	}

	o.teardown.begin() // makes the two-level group fail
	if twoLevelGroup := o.teardown.parent.Load(); twoLevelGroup != nil {
		return twoLevelGroup.plane.Cause()
	}

	return cause
}

// UserGroup returns the group that the program has created: the two-level group if this group is a
// level of one, and otherwise this group.
func (o *owner) UserGroup() stream.Group {
	if twoLevelGroup := o.teardown.parent.Load(); twoLevelGroup != nil {
		return twoLevelGroup.group
	}

	return o
}

// ReplayFault returns the cause if the group has failed and another library has captured its calls.
func (o *owner) ReplayFault() error {
	if !o.recorder.wasCaptured.Load() {
		return nil
	}

	_ = o.faults.checkKernels() // sets the cause after a fault
	cause := o.plane.Cause()
	if errors.Is(cause, driver.ErrClosed) {
		return nil
	}

	return cause
}

// RecordEvent makes the group's next launch wait for an event on s, if the latest launch is on s.
// If s is abandoned, the next launch does not wait. The caller must hold s.Mu.
func (o *owner) RecordEvent(s *stream.Stream, isAbandoned bool) error {
	order := &o.direct.order
	if order.LatestStream() != s {
		return nil
	}

	if isAbandoned {
		order.ForgetLatest(s)
		return nil
	}

	return o.gpu.Do(func() error { return order.RecordLatest(s) })
}

const peerLossTimeout = 3 * time.Second // until a lost rank is noticed

// CheckEndedEarly checks a collective that has ended. If it needs all ranks, but some rank has not
// launched it, the group fails and CheckEndedEarly returns the cause. NCCL kernels end early if
// another rank aborts its communicator, or exits while it shares the GPU by CUDA's MPS.
func (o *owner) CheckEndedEarly(ticket uint64) error {
	call := o.history.callOf(ticket)
	if call == nil || !needsAllRanks(call) || o.isLaunchedByAll(ticket) {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), peerLossTimeout)
	defer cancel()
	_ = gpu.Poll(ctx, func() bool { // first wait for an error that names the lost rank
		o.faults.checkPeers()
		return o.plane.Cause() != nil
	})
	if o.plane.Cause() == nil {
		_ = o.plane.Fail(fmt.Errorf("collective %d of group %s has ended before all ranks have "+
			"launched it", ticket, o.cfg.Name()))
	}

	o.teardown.begin()
	return o.plane.Cause()
}

func needsAllRanks(call *driver.Call) bool {
	if !call.Operation.WaitsForAllRanks() {
		return false
	}

	// Without data, NCCL launches no kernel, except for a Barrier.
	return call.Count > 0 || call.Path == driver.PathDirect || call.Operation == driver.Barrier
}

// isLaunchedByAll reports whether all ranks have launched an ended collective. Between machines, it
// returns true unless a rank has failed. Failed ranks notify the others before they abort kernels.
func (o *owner) isLaunchedByAll(ticket uint64) bool {
	if announcements := o.direct.announcements; announcements != nil { // on one machine
		return announcements.AllSubmitted(ticket)
	}

	notifier, ok := o.plane.(control.Notifier)
	if !ok { // the plane knows nothing about other ranks
		return true
	}

	if notifier.CanSucceed(ticket) {
		return true
	}

	isClosed := errors.Is(o.plane.Cause(), driver.ErrClosed)
	return isClosed // Close has reported unfinished collectives
}

// NoteMessage records a Send or Recv. The caller must hold the locks of the stream and the group.
func (o *owner) NoteMessage(s *stream.Stream, call *driver.Call) {
	ticket := o.history.recordMessage(call)
	s.SetLastCall(o, ticket, call.Operation)
}

// FailUnqueued makes the group fail because a message could not be queued, and returns the cause.
func (o *owner) FailUnqueued(call *driver.Call, err error) error {
	return o.faults.failAfterQueueError(call, err)
}

// FailAfterPeer makes the group fail because another rank has failed, and returns the cause.
func (o *owner) FailAfterPeer(call *driver.Call) error { return o.faults.failAfterPeer(call) }
