package nccl

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// When a rank aborts NCCL, calls on other ranks end early and must not look successful. On several
// machines, the rank therefore first waits until the others acknowledge the failure through the
// control plane. When a call ends, CheckEndedEarly asks the control plane whether the call can have
// succeeded.

// hookedPlane is a control plane that calls onWait instead of waiting.
type hookedPlane struct {
	control.Plane
	onWait func()
}

func (p *hookedPlane) WaitForAcknowledgements() { p.onWait() }
func (p *hookedPlane) CanSucceed(uint64) bool   { return true }

func (r *testRank) launchAllReduce() error {
	const count = 1 << 10
	buffer, err := r.mapRegion(4 * count)
	if err != nil {
		return err
	}

	p, err := prepare(r.group, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	})
	if err != nil {
		return err
	}

	return r.group.Launch(r.stream, p)
}

// The teardown waits for acknowledgements before it aborts NCCL's communicator.
func TestPeersLearnOfFaultBeforeAbort(t *testing.T) {
	simulateTwoMachines(t, 2)
	g := newTestGroup(t, 2, 20*time.Second)
	g.regroup()
	g.must(func(r *testRank) error {
		if r.rank != 0 {
			return nil
		}

		c := r.group.(*communicator)
		var hasWaited, wasAborting atomic.Bool
		c.teardown.plane = &hookedPlane{Plane: c.plane, onWait: func() {
			wasAborting.Store(c.comm.isFreeing.Load())
			hasWaited.Store(true)
		}}
		c.SetCheck(false) // otherwise Launch would wait for rank 1
		if err := r.launchAllReduce(); err != nil {
			return err
		}

		c.Abort(nil)
		<-c.stages.kernelsEnded
		if !hasWaited.Load() {
			return failuref("the teardown did not call WaitForAcknowledgements")
		}

		if wasAborting.Load() {
			return failuref("the teardown began the abort before it called WaitForAcknowledgements")
		}

		if err := r.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			return failuref("Synchronize = %v, want ErrAborted", err)
		}

		return nil
	})
}

// outcomePlane is a control plane that knows whether another machine has failed.
type outcomePlane struct {
	control.Plane
	hasFailure bool
}

func (p *outcomePlane) WaitForAcknowledgements() {}
func (p *outcomePlane) CanSucceed(uint64) bool   { return !p.hasFailure }

// recordedTicket is a sequence number in the group.
const recordedTicket = 7

// recordLaunch records a launch with recordedTicket.
func recordLaunch(c *communicator) {
	const exchangeKernelCount = 0 // NCCL runs the call
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.recordCollective(&call, recordedTicket, exchangeKernelCount)
}

// A call that ended early fails only on ranks that know of a failure.
func TestCallsThatEndedEarlyAreFaults(t *testing.T) {
	simulateTwoMachines(t, 2)
	g := newTestGroup(t, 2, 20*time.Second)
	g.regroup()
	g.must(func(r *testRank) error {
		c := r.group.(*communicator)
		recordLaunch(c)
		hasFailure := r.rank == 1
		c.owner.plane = &outcomePlane{Plane: c.plane, hasFailure: hasFailure}
		err := c.owner.CheckEndedEarly(recordedTicket)
		if gotErr := err != nil; gotErr != hasFailure {
			return failuref("rank %d: CheckEndedEarly = %v, want an error: %t", r.rank, err, hasFailure)
		}

		return nil
	})
}

// A call that completed before its group was closed stays successful, even if the other rank has
// not reported that it launched the call.
func TestEndedCallsOutliveTheirGroup(t *testing.T) {
	simulateTwoMachines(t, 2)
	g := newTestGroup(t, 2, 20*time.Second)
	g.regroup()
	g.must(func(r *testRank) error {
		c := r.group.(*communicator)
		recordLaunch(c)
		if err := r.closeGroup(); err != nil {
			return err
		}

		if err := c.owner.CheckEndedEarly(recordedTicket); err != nil {
			return failuref("CheckEndedEarly = %v, want nil", err)
		}

		return nil
	})
}

// A call that Synchronize has reported as successful stays so after a failure of another machine,
// even if another goroutine queried the stream meanwhile.
func TestCallsThatWereWaitedForStaySuccessful(t *testing.T) {
	simulateTwoMachines(t, 2)
	g := newTestGroup(t, 2, 20*time.Second)
	g.regroup()
	g.must(func(r *testRank) error {
		if err := r.launchAllReduce(); err != nil {
			return err
		}

		stopQueries := r.queryRepeatedly()
		err := r.stream.Synchronize(t.Context())
		stopQueries()
		if err != nil {
			return err
		}

		c := r.group.(*communicator)
		c.owner.plane = &outcomePlane{Plane: c.plane, hasFailure: true}
		defer func() { c.owner.plane = c.plane }()
		if err := r.stream.Synchronize(t.Context()); err != nil {
			return failuref("the second Synchronize = %v, want nil", err)
		}

		return nil
	})
}

// queryRepeatedly queries the stream in another goroutine until stop is called.
func (r *testRank) queryRepeatedly() (stop func()) {
	s := r.stream.(*stream.Stream)
	var isStopped atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for !isStopped.Load() {
			_ = s.Idle()
		}
	}()

	return func() {
		isStopped.Store(true)
		<-stopped
	}
}
