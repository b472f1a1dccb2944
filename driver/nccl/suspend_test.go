package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestGroupThatFailsInResumeFreesItsMemory aborts a group on one rank during Resume, after both
// ranks have allocated the group's memory.
func TestGroupThatFailsInResumeFreesItsMemory(t *testing.T) {
	w := newTestGroup(t, 2, time.Minute)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		needDirect(t, c)
		if err := c.suspender.PrepareSuspend(); err != nil {
			return err
		}
		_, err := c.suspender.Suspend(t.Context())
		return err
	})
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		if m.rank == 1 {
			defer c.Abort(nil)
			exchange, err := c.suspender.allocate()
			defer exchange.Withdraw()
			_, refusal, agreeErr := c.suspender.exchangeResumptions(t.Context(), exchange, err)
			return errors.Join(refusal, agreeErr)
		}
		if err := c.suspender.Resume(t.Context()); err == nil {
			return failuref("Resume succeeded although the other rank has aborted the group")
		}
		return nil
	})
	w.must(func(m *testRank) error {
		<-m.group.(*communicator).stages.tornDown
		return m.group.(*communicator).teardown.err
	})
}

// TestWindowsThatWereNotMappedAreSuspended suspends and resumes NCCL windows that were registered
// although one rank could not map the other rank's memory.
func TestWindowsThatWereNotMappedAreSuspended(t *testing.T) {
	const bytes = 4096
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		needDirect(t, m.group)
		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}
		s, err := m.mapRegion(bytes)
		if err == nil {
			err = m.register(w, s, 1)
		}
		if err != nil {
			return err
		}
		window := s.window.(*window)
		window.mappedByAll, window.mapped = false, m.rank == 1
		if m.rank == 0 {
			return window.unmapPeers()
		}
		return nil
	})
	for range 2 {
		w.must(func(m *testRank) error {
			s := m.regions[0]
			if err := s.window.(*window).Suspend(); err != nil {
				return err
			}
			if s.window.(*window).handle != 0 {
				return failuref("NCCL's window is registered although the window is suspended")
			}
			return s.segment.(driver.SuspendableSegment).Suspend()
		})
		w.must(func(m *testRank) error {
			return m.regions[0].segment.(driver.SuspendableSegment).Resume()
		})
		w.must(func(m *testRank) error {
			window := m.regions[0].window.(*window)
			if err := window.Resume(t.Context()); err != nil {
				return err
			}
			_, err := window.PeerAddresses()
			return err
		})
	}
}
