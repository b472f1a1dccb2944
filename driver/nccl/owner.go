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

// owner represents a group of ranks to streams and messages. The cause of a group is the error with
// which it has failed. A ticket is the number of a collective in the group.
type owner struct {
	gpu      *gpu.GPU
	cfg      *driver.GroupConfig
	plane    control.Plane // connects the ranks outside NCCL, and stores the cause
	history  *history
	direct   *directPath // runs symmem's own kernels
	faults   *faults
	stages   *stages
	recorder *recorder
	teardown *teardown

	waitPool sync.Pool // unused values of type *collectiveWait
}

var (
	_ stream.Group = (*owner)(nil)
	_ p2p.Owner    = (*owner)(nil)
)

// Await waits until stream s is idle. ticket and operation describe the stream's last call of the
// group. Errors other than the end of ctx make the group fail.
func (o *owner) Await(
	ctx context.Context, s *stream.Stream, ticket uint64, operation driver.Operation,
) error {
	w, isReused := o.waitPool.Get().(*collectiveWait)
	if !isReused {
		w = o.faults.newCollectiveWait(ticket, operation)
		w.planeWait.Done = w.isStreamIdle
	}

	w.stream = s
	w.planeWait.Ticket = ticket
	w.planeWait.Operation = operation
	err := o.plane.Await(ctx, w.planeWait)
	o.waitPool.Put(w)
	if err != nil && o.plane.Cause() != nil {
		o.teardown.begin()
	}

	return err
}

func (o *owner) KernelsEnded() <-chan struct{} { return o.stages.kernelsEnded }

// KernelFault makes the group fail, and returns the cause, if one of symmem's own kernels has
// reported a fault.
func (o *owner) KernelFault() error {
	cause := o.faults.checkKernels()
	if cause == nil {
		return nil
	}

	o.teardown.begin() // also makes a two-level group fail that uses this group
	if twoLevelGroup := o.teardown.parent.Load(); twoLevelGroup != nil {
		return twoLevelGroup.plane.Cause()
	}

	return cause
}

// UserGroup returns the group that the program has created, which may be a two-level group that
// uses this group.
func (o *owner) UserGroup() stream.Group {
	if twoLevelGroup := o.teardown.parent.Load(); twoLevelGroup != nil {
		return twoLevelGroup.group
	}

	return o
}

// ReplayFault returns the cause if another library has captured calls of the group, and can replay
// them at any time. If the group was closed without a failure, it returns nil.
func (o *owner) ReplayFault() error {
	if !o.recorder.wasCaptured.Load() {
		return nil
	}

	_ = o.faults.checkKernels() // a fault becomes the cause
	cause := o.plane.Cause()
	if errors.Is(cause, driver.ErrClosed) {
		return nil
	}

	return cause
}

// RecordEvent records an event for which the group's next launches wait, if the group's latest
// launch is on stream s. If s is abandoned, the next launches do not wait.
func (o *owner) RecordEvent(s *stream.Stream, isAbandoned bool) error {
	order := &o.direct.order
	// The caller holds s.Mu, so no launch on s can follow this check.
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

// CheckEndedEarly makes the group fail, and returns the cause, if a collective that needs all ranks
// has ended before all have launched it. NCCL kernels end early if another rank aborts its
// communicator, or exits and shares the GPU by CUDA's MPS.
func (o *owner) CheckEndedEarly(ticket uint64) error {
	call := o.history.callOf(ticket)
	if call == nil || !needsAllRanks(call) || o.isLaunchedByAll(ticket) {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), peerLossTimeout)
	defer cancel()
	hasFailed := func() bool {
		o.faults.checkPeers()
		return o.plane.Cause() != nil
	}
	_ = gpu.Poll(ctx, hasFailed) // the error of a lost rank would explain more than the following one
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

	// NCCL launches no kernel for a call without data, except for a Barrier.
	return call.Count > 0 || call.Path == driver.PathDirect || call.Operation == driver.Barrier
}

// isLaunchedByAll reports whether all ranks have launched an ended collective. Between machines, it
// only checks that no rank has failed, because launches become known too late. A failed rank always
// notifies the others before it aborts its kernels.
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
