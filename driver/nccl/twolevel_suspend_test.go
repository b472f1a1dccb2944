package nccl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// Four ranks run on two simulated machines. The two-level path uses smaller groups, the levels:
// {0, 1} and {2, 3} within the machines, {0, 2} and {1, 3} between them. Suspend releases the GPU
// memory of a group and its levels until Resume allocates it again.

// checkAll checks each operation of the two-level path on a prefix of the inputs.
func (w *twoLevelGroup) checkAll() {
	w.t.Helper()
	const bytes = 1 << 10
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

func (w *twoLevelGroup) resume() {
	w.t.Helper()
	w.must(func(m *testRank) error { return m.group.(*communicator).suspender.Resume(w.t.Context()) })
}

// Suspend returns the number of bytes that it releases, every time.
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

			if released < kernels.ExchangeBytes {
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

// If one rank has too little memory, Resume fails on all ranks and allocates nothing. It can be
// retried.
func TestResumeOfLevelsIsRefusedOnAllRanks(t *testing.T) {
	const fullRank = 2
	w := newTwoLevelGroup(t, 4)
	w.fill(driver.Int32)
	released := w.suspend()
	freeSuspended := w.freeMemory()
	var occupied *region
	w.must(func(m *testRank) (err error) {
		if m.rank == fullRank {
			needed := released[m.rank]
			left := needed / 2
			occupied, err = m.mapRegion(freeSuspended[m.rank] - left)
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
			m.regions = m.regions[:len(m.regions)-1] // without occupied, the last one
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

// Levels that are connected while a window and its memory are suspended can use it after Resume.
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

		levelWindow := window.machineWindow
		if levelWindow == nil || !levelWindow.isMappedEverywhere {
			return failuref("machineWindow after Resume = %+v, want one that is mapped everywhere",
				levelWindow)
		}

		return nil
	})
	w.fill(driver.Int32)
	w.checkAll()
}

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
