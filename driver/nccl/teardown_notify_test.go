package nccl

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// notifiedPlane calls a function in AwaitNotified.
type notifiedPlane struct {
	control.Plane
	notify func()
}

func (p *notifiedPlane) AwaitNotified() { p.notify() }
func (p *notifiedPlane) AwaitNotices()  {}

// TestPeersKnowFaultBeforeAbort launches a plain call on one of two ranks and fails its group. The
// other rank must have been notified before NCCL's communicator is aborted.
func TestPeersKnowFaultBeforeAbort(t *testing.T) {
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
		c.teardown.plane = &notifiedPlane{c.plane, func() {
			late.Store(c.comm.aborting.Load())
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
			return failuref("notified = %t, after the abort = %t; want true, false", notified.Load(),
				late.Load())
		}
		if err := m.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrAborted) {
			return failuref("Synchronize = %v; want ErrAborted", err)
		}
		return nil
	})
}

// noticePlane learns of a peer's fault when the caller waits for notices.
type noticePlane struct {
	control.Plane
	failure bool // whether a notice arrives
	failed  bool
}

func (p *noticePlane) AwaitNotified()   {}
func (p *noticePlane) AwaitNotices()    { p.failed = p.failure }
func (p *noticePlane) PeerFailed() bool { return p.failed }

// noteCall records a call with the given ticket as launched.
func noteCall(c *communicator, ticket uint64) {
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.record(&call, ticket, 0)
}

// TestCallsThatEndedEarlyAreFaults checks calls on several machines that have ended. A call whose
// peer has failed is a fault, even if the notice arrives only after the call has ended, as it does
// if this process was stopped.
func TestCallsThatEndedEarlyAreFaults(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		noteCall(c, 7)
		c.owner.plane = &noticePlane{Plane: c.plane, failure: m.rank == 1}
		err := c.owner.EndedEarly(7)
		if got, want := err != nil, m.rank == 1; got != want {
			return failuref("EndedEarly = %v; want an error: %t", err, want)
		}
		return nil
	})
}

// TestEndedCallsOutliveTheirGroup closes a group. A call that ended before the close is not treated
// as a fault, even if the other rank has not reported its submission yet.
func TestEndedCallsOutliveTheirGroup(t *testing.T) {
	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		noteCall(c, 7)
		if err := m.closeGroup(); err != nil {
			return err
		}
		if err := c.owner.EndedEarly(7); err != nil {
			return failuref("EndedEarly = %v; want nil", err)
		}
		return nil
	})
}
