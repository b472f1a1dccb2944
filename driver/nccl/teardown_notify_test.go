package nccl

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Two ranks run on two simulated machines. They learn of failures through the control plane, a
// connection between the machines. If rank 0 fails, NCCL ends calls early. Rank 1 must not mistake
// such a call for a success. This is prevented as follows:
//
//   - The teardown of rank 0 calls the plane's WaitForAcknowledgements before it aborts NCCL. This
//     method waits, for a limited time, until rank 1 knows of the failure.
//   - When rank 1 sees that a call has ended, it calls CheckEndedEarly. If the plane's CanSucceed
//     returns false for the call, this returns an error.

// hookedPlane is a control plane whose WaitForAcknowledgements only calls onWait.
type hookedPlane struct {
	control.Plane
	onWait func()
}

func (p *hookedPlane) WaitForAcknowledgements() { p.onWait() }
func (p *hookedPlane) CanSucceed(uint64) bool   { return true }

// allReduceBytes is the size of a region that is large enough for launchAllReduce.
const allReduceBytes = 1 << 16

// launchAllReduce launches an all-reduce in place in region s, on the plain path.
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

// TestPeersLearnOfFaultBeforeAbort launches a plain call on only one of two ranks and then aborts
// the group there. The teardown must wait until the other rank knows of the failure, and only then
// abort NCCL's communicator.
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
		// The hook runs on a goroutine of the teardown.
		var hasWaited atomic.Bool
		var wasAborting atomic.Bool // before WaitForAcknowledgements
		c.teardown.plane = &hookedPlane{Plane: c.plane, onWait: func() {
			wasAborting.Store(c.comm.isAborting.Load())
			hasWaited.Store(true)
		}}
		c.SetCheck(false) // otherwise Launch would wait for rank 1
		if err := m.launchAllReduce(s); err != nil {
			return err
		}

		c.Abort(nil) // with the default cause, ErrAborted
		<-c.stages.kernelsEnded
		if !hasWaited.Load() {
			return failuref("the teardown did not call WaitForAcknowledgements")
		}

		if wasAborting.Load() {
			return failuref("the teardown began the abort before it called WaitForAcknowledgements")
		}

		if err := m.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			return failuref("Synchronize = %v, want ErrAborted", err)
		}

		return nil
	})
}

// outcomePlane is a control plane. If hasFailed is set, it behaves as if a rank on another machine
// had failed, so that no collective can have succeeded.
type outcomePlane struct {
	control.Plane
	hasFailed bool
}

func (p *outcomePlane) WaitForAcknowledgements() {}
func (p *outcomePlane) CanSucceed(uint64) bool   { return !p.hasFailed }

// recordLaunch records an AllReduce with the given ticket (number in the group), as if it had been
// launched.
func recordLaunch(c *communicator, ticket uint64) {
	const exchangeKernelCount = 0 // as for a call of NCCL
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.recordCollective(&call, ticket, exchangeKernelCount)
}

// recordedTicket is the ticket of the call in the following two tests.
const recordedTicket = 7 // any number

// TestCallsThatEndedEarlyAreFaults calls CheckEndedEarly for a call that has ended. Rank 1 has
// learned of a failure, so it must get an error. Rank 0 has not, and must get nil.
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
		if hasFailed && err == nil {
			return failuref("rank %d: CheckEndedEarly = nil, want an error", m.rank)
		}

		if !hasFailed && err != nil {
			return failuref("rank %d: CheckEndedEarly = %v, want nil", m.rank, err)
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

// TestCallsThatWereWaitedForStaySuccessful synchronizes a stream again after a rank on another
// machine has failed. The first Synchronize returned nil, so the second one must, too.
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
