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

// An owner stands for a group of ranks in other packages of the backend. For example, a stream has
// queued collective 7 of a group, and the program waits for the stream. The stream calls Await of
// the group's owner with the ticket 7, which is the number of the collective in the group. If the
// group fails, the wait ends, too.
//
// If a group has failed, the error is called its cause. A teardown then frees the group.

// owner implements stream.Group for streams, and p2p.Owner for messages.
type owner struct {
	gpu      *gpu.GPU
	cfg      *driver.GroupConfig
	plane    control.Plane // connects the ranks outside NCCL, and keeps the cause
	history  *history
	direct   *directPath // for symmem's own kernels
	faults   *faults
	stages   *stages
	recorder *recorder
	teardown *teardown

	waitPool sync.Pool // of *collectiveWait, to avoid allocations
}

var (
	_ stream.Group = (*owner)(nil)
	_ p2p.Owner    = (*owner)(nil)
)

// Await waits until stream s is idle. ticket and operation describe the stream's last call of the
// group. An error other than that of ctx makes the group fail.
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
	if err != nil && o.plane.Cause() != nil { // the group has failed
		o.teardown.begin()
	}

	return err
}

func (o *owner) KernelsEnded() <-chan struct{} { return o.stages.kernelsEnded }

// KernelFault makes the group fail and begins its teardown if one of symmem's own kernels has
// reported a fault. It returns the cause, or nil without a fault.
func (o *owner) KernelFault() error {
	cause := o.faults.checkKernels()
	if cause == nil {
		return nil
	}

	o.teardown.begin()
	// A two-level group uses several groups, its levels. If this group is one, begin has also made the
	// two-level group fail.
	if parent := o.teardown.parent.Load(); parent != nil {
		return parent.plane.Cause()
	}

	return cause
}

// UserGroup returns the group that the program uses. This is the two-level group if this group is
// one of its levels, and otherwise this group.
func (o *owner) UserGroup() stream.Group {
	if parent := o.teardown.parent.Load(); parent != nil {
		return parent.group
	}

	return o
}

// ReplayFault returns the cause if other libraries have captured calls of the group in CUDA graphs,
// which they can replay. Otherwise, it returns nil. It also returns nil if the group has been
// closed.
func (o *owner) ReplayFault() error {
	if !o.recorder.wasCaptured.Load() {
		return nil
	}

	_ = o.faults.checkKernels() // a fault becomes the cause
	cause := o.plane.Cause()    // nil if the group has not failed
	if errors.Is(cause, driver.ErrClosed) {
		return nil
	}

	return cause
}

// RecordEvent records an event after the group's latest launch if that launch is on stream s. Later
// launches can wait for the event. If isAbandoned is set, RecordEvent instead makes later launches
// ignore that launch.
func (o *owner) RecordEvent(s *stream.Stream, isAbandoned bool) error {
	order := &o.direct.order
	// s cannot become the latest stream after this check, because the caller holds s.Mu.
	if order.LatestStream() != s {
		return nil
	}

	if isAbandoned {
		order.ForgetLatest(s)
		return nil
	}

	return o.gpu.Do(func() error { return order.RecordLatest(s) })
}

// peerLossTimeout is how long CheckEndedEarly waits for the error of a lost rank.
const peerLossTimeout = 3 * time.Second

// CheckEndedEarly makes the group fail if a collective has ended too early: it needs the data of
// all ranks, but some rank has not launched it. It returns the cause, or nil.
//
// NCCL kernels end early if another rank aborts its communicator or, under CUDA's MPS, if the
// process of another rank exits. CheckEndedEarly first waits for the error of a lost rank, because
// that error explains more.
func (o *owner) CheckEndedEarly(ticket uint64) error {
	call := o.history.callOf(ticket)
	if call == nil || !needsAllRanks(call) || o.isLaunchedByAll(ticket) {
		return nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), peerLossTimeout)
	defer cancel()
	_ = gpu.Poll(ctx, func() bool {
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

// needsAllRanks reports whether a call can only complete after all ranks have launched it.
func needsAllRanks(call *driver.Call) bool {
	if !call.Operation.WaitsForAllRanks() {
		return false
	}

	// On NCCL's paths, a call without data launches no kernel, unless it is a Barrier. Such a call
	// ends at once.
	return call.Count > 0 || call.Path == driver.PathDirect || call.Operation == driver.Barrier
}

// isLaunchedByAll reports whether all ranks have launched a collective that has ended.
//
// Launches on other machines become known too late. For a group on several machines, it therefore
// reports whether the collective can have succeeded. This suffices, because a failed rank aborts
// its kernels only after the other ranks know of the failure. For such a group, it returns true
// after Close, which has reported unfinished collectives.
func (o *owner) isLaunchedByAll(ticket uint64) bool {
	if announcements := o.direct.announcements; announcements != nil { // on one machine
		return announcements.AllSubmitted(ticket)
	}

	notifier, ok := o.plane.(control.Notifier)
	if !ok { // the plane knows nothing about other ranks' launches
		return true
	}

	return notifier.CanSucceed(ticket) || errors.Is(o.plane.Cause(), driver.ErrClosed)
}

// NoteMessage records a Send or Recv as the last call of the group and of the stream. The caller
// must hold the locks of the stream and the group.
func (o *owner) NoteMessage(s *stream.Stream, call *driver.Call) {
	ticket := o.history.recordMessage(call)
	s.SetLastCall(o, ticket, call.Operation)
}

// FailUnqueued makes the group fail after err has prevented a message from being queued. It returns
// the cause.
func (o *owner) FailUnqueued(call *driver.Call, err error) error {
	return o.faults.failAfterQueueError(call, err)
}

// FailAfterPeer makes the group fail in the given call, because another rank has failed. It returns
// the cause.
func (o *owner) FailAfterPeer(call *driver.Call) error { return o.faults.failAfterPeer(call) }
