package nccl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// Four ranks run on two simulated machines. The two-level path uses smaller groups, called levels:
// {0, 1} and {2, 3} within the machines, and {0, 2} and {1, 3} between the machines. Suspend frees
// the GPU memory of a group and its levels, and Resume allocates it again.

// checkAll checks each operation of the two-level path on a prefix of the inputs.
func (g *twoLevelGroup) checkAll() {
	g.t.Helper()
	const bytes = 1 << 10
	const count = bytes / int32Bytes
	var prefixes [][]byte // by rank
	for _, input := range g.inputs {
		prefixes = append(prefixes, input[:bytes])
	}

	sum := twoLevelSum(driver.Int32, prefixes)
	g.checkCall(driver.AllReduce, driver.Int32, count, sum)
	g.checkCall(driver.AllGather, driver.Int32, count, slices.Concat(prefixes...))
	g.checkParts(driver.ReduceScatter, driver.Int32, count/int64(len(g.ranks)), sum)
}

func (g *twoLevelGroup) resume() {
	g.t.Helper()
	g.must(func(r *testRank) error { return r.group.(*communicator).suspender.Resume(g.t.Context()) })
}

// Suspend returns the number of bytes that it frees. It can be called again after Resume.
func TestSuspendReleasesLevels(t *testing.T) {
	g := newTwoLevelGroup(t, 4)
	g.fill(driver.Int32)
	g.checkAll()
	for range 2 {
		freeBefore := g.freeMemory()
		reported := g.suspend()
		for rank, freeSuspended := range g.freeMemory() {
			freed := freeSuspended - freeBefore[rank]
			if reported[rank] != freed {
				t.Errorf("rank %d: Suspend = %d bytes, want %d, the increase of free memory", rank,
					reported[rank], freed)
			}

			if freed < kernels.ExchangeBytes {
				t.Errorf("rank %d: Suspend freed %d bytes, want at least %d", rank, freed,
					kernels.ExchangeBytes)
			}
		}

		g.resume()
		if free := g.freeMemory(); !slices.Equal(free, freeBefore) {
			t.Errorf("free memory after Resume = %d, want %d", free, freeBefore)
		}

		g.checkAll()
	}
}

// If one rank has too little memory, Resume fails on all ranks and allocates nothing. Afterwards,
// Resume can be called again.
func TestResumeOfLevelsIsRefusedOnAllRanks(t *testing.T) {
	const fullRank = 2
	g := newTwoLevelGroup(t, 4)
	g.fill(driver.Int32)
	freed := g.suspend()
	freeSuspended := g.freeMemory()
	var occupied *region
	g.must(func(r *testRank) (err error) {
		if r.rank == fullRank {
			left := freed[r.rank] / 2 // Resume needs twice as much
			occupied, err = r.mapRegion(freeSuspended[r.rank] - left)
		}

		return err
	})
	g.must(func(r *testRank) error {
		err := r.group.(*communicator).suspender.Resume(t.Context())
		if !errors.Is(err, driver.ErrOutOfMemory) || r.group.Cause() != nil {
			return failuref("Resume = %v, want ErrOutOfMemory without a fault", err)
		}

		return nil
	})
	g.must(func(r *testRank) error {
		if r.rank == fullRank {
			r.regions = slices.DeleteFunc(r.regions, func(s *region) bool { return s == occupied })
			return occupied.segment.Unmap()
		}

		return nil
	})
	if free := g.freeMemory(); !slices.Equal(free, freeSuspended) {
		t.Errorf("free memory after a refused Resume = %d, want %d", free, freeSuspended)
	}

	g.resume()
	g.checkAll()
}

// If a window and its memory are suspended while levels are connected, the levels can use the
// window after Resume.
func TestLevelsAreConnectedWhileWindowIsSuspended(t *testing.T) {
	simulateTwoMachines(t, 4)
	g := &twoLevelGroup{testGroup: newTestGroup(t, 4, 20*time.Second)}
	g.regroup()
	g.must(func(r *testRank) error {
		if err := r.registerTwoRegions(g.testGroup); err != nil {
			return err
		}

		input := r.regions[0]
		if err := input.window.(*window).Suspend(); err != nil {
			return err
		}

		return input.segment.(driver.SuspendableSegment).Suspend()
	})
	g.must(func(r *testRank) error { return r.group.(driver.TwoLevels).UseTwoLevels(t.Context()) })
	g.must(func(r *testRank) error {
		return r.regions[0].segment.(driver.SuspendableSegment).Resume()
	})
	g.must(func(r *testRank) error {
		window := r.regions[0].window.(*window)
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
	g.fill(driver.Int32)
	g.checkAll()
}

func (r *testRank) registerTwoRegions(g *testGroup) error {
	for name := range uint32(2) {
		buffer, err := r.mapRegion(twoLevelBytes)
		if err != nil {
			return err
		}

		if err := r.register(g, buffer, name); err != nil {
			return err
		}
	}

	return nil
}
