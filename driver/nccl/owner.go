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

// owner implements the interfaces through which streams (stream.Group) and messages (p2p.Owner)
// use a group. A ticket is the number of a collective in the group.
type owner struct {
	gpu      *gpu.GPU
	cfg      *driver.GroupConfig
	plane    control.Plane
	history  *history
	direct   *directPath
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

func (o *owner) Await(
	ctx context.Context, s *stream.Stream, ticket uint64, operation driver.Operation,
) error {
	w, isReused := o.waitPool.Get().(*collectiveWait)
	if !isReused {
		w = o.faults.newCollectiveWait(0, 0)
		w.wait.Done = w.isStreamIdle
	}
	w.stream, w.wait.Ticket, w.wait.Operation = s, ticket, operation
	err := o.plane.Await(ctx, w.wait)
	o.waitPool.Put(w)
	if err != nil && o.plane.Cause() != nil {
		o.teardown.begin()
	}
	return err
}

func (o *owner) KernelsEnded() <-chan struct{} { return o.stages.kernelsEnded }

func (o *owner) KernelFault() error {
	err := o.faults.checkKernels()
	if err != nil {
		o.teardown.begin()
		if parent := o.teardown.parent.Load(); parent != nil {
			return parent.plane.Cause()
		}
	}
	return err
}

// UserGroup returns the two-level group of which this is a level, or this group.
func (o *owner) UserGroup() stream.Group {
	if parent := o.teardown.parent.Load(); parent != nil {
		return parent.group
	}
	return o
}

// ReplayFault returns the cause of the group's failure, or nil if no other library has captured
// calls of the group or if the group has been closed.
func (o *owner) ReplayFault() error {
	if !o.recorder.wasCaptured.Load() {
		return nil
	}
	_ = o.faults.checkKernels() // a fault becomes the cause
	if cause := o.plane.Cause(); !errors.Is(cause, driver.ErrClosed) {
		return cause
	}
	return nil
}

// RecordEvent records an event after the group's latest launch if that launch is on stream s. If
// isAbandoned is set, it makes later launches ignore the launch instead.
func (o *owner) RecordEvent(s *stream.Stream, isAbandoned bool) error {
	order := &o.direct.order
	if order.LatestStream() != s {
		return nil // s cannot become the latest stream meanwhile, because the caller holds s.Mu
	}
	if isAbandoned {
		order.ForgetLatest(s)
		return nil
	}
	return o.gpu.Do(func() error { return order.RecordLatest(s) })
}

// CheckEndedEarly makes the group fail if a collective has ended before all ranks whose data it
// needs have launched it. NCCL kernels end early if another rank aborts its communicator or, under
// CUDA's MPS, if its process exits. CheckEndedEarly first waits for the error of a lost rank,
// which explains more.
func (o *owner) CheckEndedEarly(ticket uint64) error {
	call := o.history.callOf(ticket)
	if call == nil || !needsAllRanks(call) || o.isLaunchedByAll(ticket) {
		return nil
	}
	o.pollUntil(peerLossTimeout, func() bool {
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

func (o *owner) pollUntil(limit time.Duration, isDone func() bool) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_ = gpu.Poll(ctx, isDone) // the caller checks the condition itself
}

// isLaunchedByAll reports whether all ranks have launched a collective that has ended. It returns
// true after Close, which has reported unfinished collectives.
//
// Launches on other machines become known too late. For a group on several machines, it therefore
// reports whether the collective can have succeeded. This suffices, because a failed rank aborts
// its kernels only after the other ranks know of the failure.
func (o *owner) isLaunchedByAll(ticket uint64) bool {
	if announcements := o.direct.announcements; announcements != nil {
		return announcements.AllSubmitted(ticket)
	}
	notifier, ok := o.plane.(control.Notifier)
	return !ok || notifier.CanSucceed(ticket) || errors.Is(o.plane.Cause(), driver.ErrClosed)
}

func needsAllRanks(call *driver.Call) bool {
	// A call without data launches no kernel of NCCL and ends at once.
	hasKernel := call.Count > 0 || call.Path == driver.PathDirect || call.Operation == driver.Barrier
	return hasKernel && call.Operation.WaitsForAllRanks()
}

// peerLossTimeout is how long CheckEndedEarly waits for the error of a lost rank.
const peerLossTimeout = 3 * time.Second

// NoteMessage records a Send or Recv as the last call of the group and of the stream. It requires
// the locks of the stream and the group.
func (o *owner) NoteMessage(s *stream.Stream, call *driver.Call) {
	s.SetLastCall(o, o.history.recordMessage(call), call.Operation)
}

func (o *owner) FailUnqueued(call *driver.Call, err error) error {
	return o.faults.failAfterQueueError(call, err)
}

func (o *owner) FailAfterPeer(call *driver.Call) error { return o.faults.failAfterPeer(call) }
