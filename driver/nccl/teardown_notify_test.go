package nccl

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// notifyHookPlane is a Plane whose WaitForAcknowledgements calls onAwait.
type notifyHookPlane struct {
	control.Plane
	onAwait func()
}

func (p *notifyHookPlane) WaitForAcknowledgements() { p.onAwait() }
func (p *notifyHookPlane) CanSucceed(uint64) bool   { return true }

// TestPeersLearnOfFaultBeforeAbort launches a plain call on only one of two ranks and then aborts
// the group there. The other rank must be notified before NCCL's communicator is aborted.
func TestPeersLearnOfFaultBeforeAbort(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 16)
		if err != nil || m.rank != 0 {
			return err
		}
		c := m.group.(*communicator)
		var isNotified, wasAborted atomic.Bool
		c.teardown.plane = &notifyHookPlane{c.plane, func() {
			wasAborted.Store(c.comm.isAborting.Load())
			isNotified.Store(true)
		}}
		c.SetCheck(false)
		p, err := prepare(c, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 1024,
			Send: s.segment.Address(), Recv: s.segment.Address(),
		})
		if err == nil {
			err = c.Launch(m.stream, p)
		}
		if err != nil {
			return err
		}
		c.Abort(nil)
		<-c.stages.kernelsEnded
		if !isNotified.Load() || wasAborted.Load() {
			return failuref("notified: %t, after the abort: %t; want true, false", isNotified.Load(),
				wasAborted.Load())
		}
		if err := m.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			return failuref("Synchronize = %v, want ErrAborted", err)
		}
		return nil
	})
}

// failurePlane is a Plane on which collectives can succeed unless hasFailed is set.
type failurePlane struct {
	control.Plane
	hasFailed bool
}

func (p *failurePlane) WaitForAcknowledgements() {}
func (p *failurePlane) CanSucceed(uint64) bool   { return !p.hasFailed }

func recordLaunch(c *communicator, ticket uint64) {
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.recordCollective(&call, ticket, 0)
}

// TestCallsThatEndedEarlyAreFaults checks a call that has ended although a rank on another machine
// has failed.
func TestCallsThatEndedEarlyAreFaults(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		recordLaunch(c, 7)
		c.owner.plane = &failurePlane{c.plane, m.rank == 1}
		err := c.owner.CheckEndedEarly(7)
		if got, want := err != nil, m.rank == 1; got != want {
			return failuref("CheckEndedEarly = %v; want an error: %t", err, want)
		}
		return nil
	})
}

// TestEndedCallsOutliveTheirGroup checks a call that completed before its group was closed.
// CheckEndedEarly must return nil, even if the other rank has not yet reported its launch.
func TestEndedCallsOutliveTheirGroup(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		recordLaunch(c, 7)
		if err := m.closeGroup(); err != nil {
			return err
		}
		if err := c.owner.CheckEndedEarly(7); err != nil {
			return failuref("CheckEndedEarly = %v, want nil", err)
		}
		return nil
	})
}

// TestCallsThatWereWaitedForStaySuccessful synchronizes a stream again after a rank on another
// machine has failed. The first Synchronize returned nil, so the second one must, too.
func TestCallsThatWereWaitedForStaySuccessful(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 16)
		if err != nil {
			return err
		}
		c := m.group.(*communicator)
		p, err := prepare(c, driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 1024,
			Send: s.segment.Address(), Recv: s.segment.Address(),
		})
		if err == nil {
			err = errors.Join(c.Launch(m.stream, p), m.stream.Synchronize(t.Context()))
		}
		if err != nil {
			return err
		}
		c.owner.plane = &failurePlane{c.plane, true}
		defer func() { c.owner.plane = c.plane }()
		if err := m.stream.Synchronize(t.Context()); err != nil {
			return failuref("the second Synchronize = %v, want nil", err)
		}
		return nil
	})
}
