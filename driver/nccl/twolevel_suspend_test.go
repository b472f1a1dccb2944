package nccl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// checkAll checks each operation of the two-level path on the first bytes of the inputs. The path
// has two levels: communicators within a machine and between machines.
func (w *twoLevelGroup) checkAll() {
	w.t.Helper()
	const bytes = 1 << 10
	const count = bytes / 4 // of Int32 elements
	var prefixes [][]byte   // by rank
	for _, input := range w.inputs {
		prefixes = append(prefixes, input[:bytes])
	}

	sum := twoLevelSum(driver.Int32, prefixes)
	w.checkCall(driver.AllReduce, driver.Int32, count, sum)
	w.checkCall(driver.AllGather, driver.Int32, count, slices.Concat(prefixes...))
	w.checkParts(driver.ReduceScatter, driver.Int32, count/int64(len(w.ranks)), sum)
}

// resume undoes a Suspend of the group on all ranks. It stops the test if Resume fails.
func (w *twoLevelGroup) resume() {
	w.t.Helper()
	w.must(func(m *testRank) error { return m.group.(*communicator).suspender.Resume(w.t.Context()) })
}

// TestSuspendReleasesLevels checks that Suspend releases the memory of the group and of its
// levels, and that it returns the number of bytes. After Resume, a second Suspend must do the same.
func TestSuspendReleasesLevels(t *testing.T) {
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	w.checkAll()
	for range 2 {
		freeBefore := w.freeMemory()
		reported := w.suspend()
		for r, freeSuspended := range w.freeMemory() {
			released := freeSuspended - freeBefore[r]
			if released != reported[r] {
				t.Errorf("rank %d: Suspend reported %d bytes, want %d, as it released", r, reported[r],
					released)
			}

			if released < kernels.ExchangeBytes { // the memory of the direct path alone
				t.Errorf("rank %d: Suspend released %d bytes, want at least %d", r, released,
					kernels.ExchangeBytes)
			}
		}

		w.resume()
		if free := w.freeMemory(); !slices.Equal(free, freeBefore) {
			t.Errorf("free memory after Resume = %d, want %d", free, freeBefore)
		}

		w.checkAll()
	}
}

// TestResumeOfLevelsIsRefusedOnAllRanks resumes a group although one rank has too little memory
// for all communicators of the group. Resume must fail on all ranks and keep no memory, but the
// group must not fail: once there is enough memory, Resume must succeed.
func TestResumeOfLevelsIsRefusedOnAllRanks(t *testing.T) {
	const fullRank = 2 // the rank with too little memory
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	released := w.suspend()
	freeSuspended := w.freeMemory()
	var occupied *region
	w.must(func(m *testRank) (err error) {
		if m.rank == fullRank { // leave half of the memory that Resume needs
			occupied, err = m.mapRegion(freeSuspended[m.rank] - released[m.rank]/2)
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
		if m.rank == fullRank {
			m.regions = m.regions[:len(m.regions)-1] // remove occupied, which was mapped last
			return occupied.segment.Unmap()
		}

		return nil
	})
	if free := w.freeMemory(); !slices.Equal(free, freeSuspended) {
		t.Errorf("free memory after a refused Resume = %d, want %d", free, freeSuspended)
	}

	w.resume()
	w.checkAll()
}

// TestLevelsAreConnectedWhileWindowIsSuspended calls UseTwoLevels while a window and its segment
// are suspended. After they have been resumed, the levels must be able to use the window.
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
		if err := s.window.(*window).Suspend(); err != nil {
			return err
		}

		return s.segment.(driver.SuspendableSegment).Suspend()
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

		// machineWindow is the window of the level within the machine.
		if window.machineWindow == nil || !window.machineWindow.isMappedEverywhere {
			return failuref("machineWindow after Resume = %+v, want one that is mapped everywhere",
				window.machineWindow)
		}

		return nil
	})
	w.fill(driver.Int32)
	w.checkAll()
}
