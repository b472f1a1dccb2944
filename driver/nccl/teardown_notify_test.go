package nccl

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// When a rank aborts NCCL, the calls of its peers end early and must not look successful. On
// several machines, the rank therefore first waits a limited time for its peers to acknowledge the
// failure through the control plane. When a call ends, CheckEndedEarly asks the control plane
// whether it can have succeeded.

// hookedPlane is a control plane that calls onWait instead of waiting.
type hookedPlane struct {
	control.Plane
	onWait func()
}

func (p *hookedPlane) WaitForAcknowledgements() { p.onWait() }
func (p *hookedPlane) CanSucceed(uint64) bool   { return true }

const allReduceBytes = 1 << 16 // more than launchAllReduce needs

// launchAllReduce launches an in-place all-reduce on the plain path.
func (m *testRank) launchAllReduce(s *region) error {
	p, err := prepare(m.group, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: 1024,
		Send: s.segment.Address(), Recv: s.segment.Address(),
	})
	if err != nil {
		return err
	}

	return m.group.Launch(m.stream, p)
}

// The teardown waits for acknowledgements before it aborts NCCL's communicator.
func TestPeersLearnOfFaultBeforeAbort(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(allReduceBytes)
		if err != nil || m.rank != 0 {
			return err
		}

		c := m.group.(*communicator)
		var hasWaited, abortedFirst atomic.Bool
		c.teardown.plane = &hookedPlane{Plane: c.plane, onWait: func() {
			abortedFirst.Store(c.comm.isAborting.Load())
			hasWaited.Store(true)
		}}
		c.SetCheck(false) // otherwise Launch would wait for rank 1
		if err := m.launchAllReduce(s); err != nil {
			return err
		}

		c.Abort(nil)
		<-c.stages.kernelsEnded
		if !hasWaited.Load() {
			return failuref("the teardown did not call WaitForAcknowledgements")
		}

		if abortedFirst.Load() {
			return failuref("the teardown began the abort before it called WaitForAcknowledgements")
		}

		if err := m.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			return failuref("Synchronize = %v, want ErrAborted", err)
		}

		return nil
	})
}

// outcomePlane is a control plane that reports whether another machine has failed.
type outcomePlane struct {
	control.Plane
	hasFailed bool
}

func (p *outcomePlane) WaitForAcknowledgements() {}
func (p *outcomePlane) CanSucceed(uint64) bool   { return !p.hasFailed }

// recordLaunch records an AllReduce as launched. Its ticket is its sequence number in the group.
func recordLaunch(c *communicator, ticket uint64) {
	const exchangeKernelCount = 0 // NCCL runs the call
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.recordCollective(&call, ticket, exchangeKernelCount)
}

const recordedTicket = 7 // any number

// CheckEndedEarly fails only on the rank that knows of a failure.
func TestCallsThatEndedEarlyAreFaults(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		recordLaunch(c, recordedTicket)
		hasFailed := m.rank == 1
		c.owner.plane = &outcomePlane{Plane: c.plane, hasFailed: hasFailed}
		err := c.owner.CheckEndedEarly(recordedTicket)
		if gotErr := err != nil; gotErr != hasFailed {
			return failuref("rank %d: CheckEndedEarly = %v, want an error: %t", m.rank, err, hasFailed)
		}

		return nil
	})
}

// A call that completed before its group was closed stays successful, although the other rank may
// not have reported its launch of the call.
func TestEndedCallsOutliveTheirGroup(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		recordLaunch(c, recordedTicket)
		if err := m.closeGroup(); err != nil {
			return err
		}

		if err := c.owner.CheckEndedEarly(recordedTicket); err != nil {
			return failuref("CheckEndedEarly = %v, want nil", err)
		}

		return nil
	})
}

// A call that Synchronize has reported as successful stays so after a failure of another machine.
func TestCallsThatWereWaitedForStaySuccessful(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(allReduceBytes)
		if err != nil {
			return err
		}

		if err := m.launchAllReduce(s); err != nil {
			return err
		}

		if err := m.stream.Synchronize(t.Context()); err != nil {
			return err
		}

		c := m.group.(*communicator)
		c.owner.plane = &outcomePlane{Plane: c.plane, hasFailed: true}
		defer func() { c.owner.plane = c.plane }()
		if err := m.stream.Synchronize(t.Context()); err != nil {
			return failuref("the second Synchronize = %v, want nil", err)
		}

		return nil
	})
}
