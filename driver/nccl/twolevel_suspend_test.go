package nccl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// Four ranks form a group on two simulated machines: ranks 0 and 1 on machine 0, and ranks 2 and 3
// on machine 1. The two-level path uses smaller groups on two levels: within the machines (ranks 0
// and 1, ranks 2 and 3), and between the machines (ranks 0 and 2, ranks 1 and 3).
//
// Suspend releases the GPU memory of the group and of its levels for a while, and returns the
// number of bytes. Resume allocates the memory again.

// checkAll checks each operation of the two-level path on the first bytes of the inputs.
func (w *twoLevelGroup) checkAll() {
	w.t.Helper()
	const bytes = 1 << 10   // of each input
	const count = bytes / 4 // Int32 elements
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

// TestSuspendReleasesLevels checks that Suspend returns the number of bytes by which the free
// memory grows. After Resume, the group must work, and a second Suspend must do the same.
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

// TestResumeOfLevelsIsRefusedOnAllRanks resumes a group although rank 2 has too little free memory.
// Resume must fail on all ranks and keep no memory, but the group must not fail: once rank 2 has
// enough memory, Resume must succeed.
func TestResumeOfLevelsIsRefusedOnAllRanks(t *testing.T) {
	const fullRank = 2
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	released := w.suspend()
	freeSuspended := w.freeMemory()
	var occupied *region // memory that rank 2 uses for something else
	w.must(func(m *testRank) (err error) {
		if m.rank == fullRank { // leave half of the memory that Resume needs
			needed := released[m.rank]
			occupied, err = m.mapRegion(freeSuspended[m.rank] - needed/2)
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

// TestLevelsAreConnectedWhileWindowIsSuspended connects the levels by UseTwoLevels while a window
// and its segment (registered memory) are suspended. After both have been resumed, the levels must
// be able to use the window.
func TestLevelsAreConnectedWhileWindowIsSuspended(t *testing.T) {
	simulateTwoMachines(t, 4)
	w := &twoLevelGroup{testGroup: newTestGroup(t, 4, 20*time.Second)}
	w.regroup()
	w.must(func(m *testRank) error {
		if err := m.registerTwoRegions(w.testGroup); err != nil {
			return err
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
		level := window.machineWindow
		isUsable := level != nil && level.isMappedEverywhere
		if !isUsable {
			return failuref("machineWindow after Resume = %+v, want one that is mapped everywhere", level)
		}

		return nil
	})
	w.fill(driver.Int32)
	w.checkAll()
}

// registerTwoRegions registers two new regions of the rank, for inputs and outputs.
func (m *testRank) registerTwoRegions(w *testGroup) error {
	for name := range uint32(2) {
		s, err := m.mapRegion(twoLevelBytes)
		if err == nil {
			err = m.register(w, s, name)
		}

		if err != nil {
			return err
		}
	}

	return nil
}
