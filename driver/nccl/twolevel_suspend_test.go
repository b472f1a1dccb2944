package nccl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// checkAll checks each operation on the two-level path.
func (w *twoLevelGroup) checkAll() {
	w.t.Helper()
	const bytes = 1 << 10
	var prefix [][]byte
	for _, input := range w.inputs {
		prefix = append(prefix, input[:bytes])
	}
	sum := twoLevelSum(driver.Int32, prefix)
	w.checkCall(driver.AllReduce, driver.Int32, bytes/4, sum)
	w.checkCall(driver.AllGather, driver.Int32, bytes/4, slices.Concat(prefix...))
	w.checkParts(driver.ReduceScatter, driver.Int32, bytes/4/int64(len(w.ranks)), sum)
}

// TestSuspendReleasesLevels checks that Suspend releases and counts the memory of both levels.
func TestSuspendReleasesLevels(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	w.checkAll()
	for range 2 {
		active := w.freeMemory()
		released := w.suspend()
		for r, now := range w.freeMemory() {
			if now-active[r] != released[r] || released[r] < kernels.ExchangeBytes {
				t.Errorf("rank %d: Suspend released %d bytes and reported %d, want the same number, which "+
					"is at least %d", r, now-active[r], released[r], kernels.ExchangeBytes)
			}
		}
		w.must(func(m *testRank) error { return m.group.(*communicator).suspender.Resume(t.Context()) })
		if now := w.freeMemory(); !slices.Equal(now, active) {
			t.Errorf("free memory after Resume = %d, want %d", now, active)
		}
		w.checkAll()
	}
}

// TestResumeOfLevelsIsRefusedOnAllRanks resumes a group although one rank has too little memory for
// a level.
func TestResumeOfLevelsIsRefusedOnAllRanks(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	released := w.suspend()
	suspended := w.freeMemory()
	var occupied *region
	w.must(func(m *testRank) (err error) {
		if m.rank == 2 { // leave too little memory for all communicators
			occupied, err = m.mapRegion(suspended[m.rank] - released[m.rank]/2)
		}
		return err
	})
	w.must(func(m *testRank) error {
		err := m.group.(*communicator).suspender.Resume(t.Context())
		if !errors.Is(err, driver.ErrOutOfMemory) || m.group.Cause() != nil {
			return failuref("Resume = %v, want ErrOutOfMemory without a fault", err)
		}
		return nil
	})
	w.must(func(m *testRank) error {
		if m.rank == 2 {
			m.regions = m.regions[:len(m.regions)-1]
			return occupied.segment.Unmap()
		}
		return nil
	})
	if now := w.freeMemory(); !slices.Equal(now, suspended) {
		t.Errorf("free memory after a refused Resume = %d, want %d", now, suspended)
	}
	w.must(func(m *testRank) error { return m.group.(*communicator).suspender.Resume(t.Context()) })
	w.checkAll()
}

// TestLevelsAreConnectedWhileWindowIsSuspended checks that the levels can use the window later.
func TestLevelsAreConnectedWhileWindowIsSuspended(t *testing.T) {
	simulateTwoMachines(t, 4)
	w := &twoLevelGroup{testGroup: newTestGroup(t, 4, 20*time.Second)}
	w.regroup()
	w.must(func(m *testRank) error {
		for name := range uint32(2) {
			s, err := m.mapRegion(twoLevelBytes)
			if err == nil {
				err = m.register(w.testGroup, s, name)
			}
			if err != nil {
				return err
			}
		}
		s := m.regions[0]
		return errors.Join(s.window.(*window).Suspend(),
			s.segment.(driver.SuspendableSegment).Suspend())
	})
	w.must(func(m *testRank) error { return m.group.(driver.TwoLevels).UseTwoLevels(t.Context()) })
	w.must(func(m *testRank) error {
		return m.regions[0].segment.(driver.SuspendableSegment).Resume()
	})
	w.must(func(m *testRank) error {
		window := m.regions[0].window.(*window)
		if err := window.Resume(t.Context()); err != nil {
			return err
		}
		if window.machineWindow == nil || !window.machineWindow.isMappedByAll {
			return failuref("the levels cannot use the resumed window: %+v", window.machineWindow)
		}
		return nil
	})
	w.fill(driver.Int32)
	w.checkAll()
}
