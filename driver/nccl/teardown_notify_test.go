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

// TestPeersKnowFaultBeforeAbort launches a plain call on one of two ranks and fails its group. The
// other rank must have been notified before NCCL's communicator is aborted.
func TestPeersKnowFaultBeforeAbort(t *testing.T) {
	inTwoMachines(t, 2)
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

// knownSubmissions implements a Plane whose peer has failed. All ranks have submitted the tickets
// up to submitted.
type knownSubmissions struct {
	control.Plane
	submitted uint64
}

func (p *knownSubmissions) PeerFailed() bool             { return true }
func (p *knownSubmissions) Submitted(ticket uint64) bool { return ticket <= p.submitted }

// noteCall records a call with the given ticket as launched.
func noteCall(c *communicator, ticket uint64) {
	call := driver.Call{Operation: driver.AllReduce, Count: 1}
	c.history.note(&call, ticket, 0)
}

// TestCallsThatEndedEarlyAreFaults ends a call after a peer has failed. On several machines, the
// call has succeeded only if all ranks have submitted it.
func TestCallsThatEndedEarlyAreFaults(t *testing.T) {
	inTwoMachines(t, 2)
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		noteCall(c, 7)
		c.owner.plane = &knownSubmissions{Plane: c.plane, submitted: uint64(7 - m.rank)}
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
	inTwoMachines(t, 2)
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
