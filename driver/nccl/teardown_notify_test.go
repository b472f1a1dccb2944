package nccl

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// notifyHookPlane is a Plane whose WaitForAcknowledgements calls notify.
type notifyHookPlane struct {
	control.Plane
	notify func()
}

func (p *notifyHookPlane) WaitForAcknowledgements() { p.notify() }
func (p *notifyHookPlane) CanSucceed(uint64) bool   { return true }

// TestPeersLearnOfFaultBeforeAbort launches a plain call on only one of two ranks and then aborts
// the group on that rank. The other rank must be notified of the fault before NCCL's communicator
// is aborted.
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
		var notified, late atomic.Bool
		c.teardown.plane = &notifyHookPlane{c.plane, func() {
			late.Store(c.comm.isAborting.Load())
			notified.Store(true)
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
		if !notified.Load() || late.Load() {
			return failuref("notified = %t, only after the abort = %t; want true, false", notified.Load(),
				late.Load())
		}
		if err := m.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			return failuref("Synchronize = %v, want ErrAborted", err)
		}
		return nil
	})
}

// failurePlane is a Plane on which collectives can succeed unless failed is set.
type failurePlane struct {
	control.Plane
	failed bool
}

func (p *failurePlane) WaitForAcknowledgements() {}
func (p *failurePlane) CanSucceed(uint64) bool   { return !p.failed }

func recordLaunch(c *communicator, ticket uint64) {
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.recordCollective(&call, ticket, 0)
}

// TestCallsThatEndedEarlyAreFaults checks a call that has ended although a rank on another machine
// has failed. EndedEarly must return a fault.
func TestCallsThatEndedEarlyAreFaults(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		recordLaunch(c, 7)
		c.owner.plane = &failurePlane{c.plane, m.rank == 1}
		err := c.owner.EndedEarly(7)
		if got, want := err != nil, m.rank == 1; got != want {
			return failuref("EndedEarly = %v; want an error: %t", err, want)
		}
		return nil
	})
}

// TestEndedCallsOutliveTheirGroup checks a call that completed before its group was closed.
// EndedEarly must return nil, even if the other rank has not yet reported that it launched the
// call.
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
		if err := c.owner.EndedEarly(7); err != nil {
			return failuref("EndedEarly = %v, want nil", err)
		}
		return nil
	})
}
