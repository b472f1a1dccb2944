package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

const releasedCount = 1 << 20 // elements; arbitrary

// NCCL identifies memory by address. If it has not released unmapped memory, calls with new memory
// at the same address either succeed or report a failed group.
func TestNoGraphUsesMemoryThatNCCLCouldNotRelease(t *testing.T) {
	for _, test := range []struct {
		name    string
		failure string // function:call:error code
	}{
		{name: "NCCL fails", failure: "ncclSend:1:2"},
		// Each of the two ranks begins a capture before Unmap does, in the third call.
		{name: "CUDA fails", failure: "cuStreamBeginCapture_v2:3:2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if inSoftGPUProcess(t, test.failure) {
				checkFailedRelease(t)
			}
		})
	}
}

func checkFailedRelease(t *testing.T) {
	t.Helper()
	group := newGroup(t, 2, 20*time.Second)
	group.withSum(releasedCount, func(m *testRank, sum *repeatedSum) error {
		err := m.replayInNewGraph(group, sum)
		return errors.Join(err, sum.window.Deregister())
	})
	if err := group.ranks[0].regions[0].segment.Unmap(); err == nil {
		t.Error("Unmap succeeded, want the injected failure")
	}

	_ = group.ranks[1].regions[0].segment.Unmap() // may report rank 0's failure
	errs := group.each(func(m *testRank) error {
		m.reuseAddresses()
		sum, err := m.newRepeatedSum(group, windowName, releasedCount)
		if err == nil {
			err = m.replayInNewGraph(group, sum)
		}

		return err
	})
	group.checkSuccessOrFault(errs, "with new memory")
}

// reuseAddresses makes the next region begin at the first address of the rank's address range.
func (m *testRank) reuseAddresses() {
	m.regions = nil
	m.mapped = 0
}

// checkSuccessOrFault permits errors only on ranks whose group has failed.
func (w *testGroup) checkSuccessOrFault(errsByRank []error, situation string) {
	w.t.Helper()
	for r, err := range errsByRank {
		if err != nil && w.ranks[r].group.Cause() == nil {
			w.t.Errorf("rank %d: %s, got %v, want success or a fault of the group", r, situation, err)
		}
	}
}

// Memory that a graph uses stays mapped if CUDA does not destroy the graph.
func TestGraphThatIsNotDestroyedKeepsMemory(t *testing.T) {
	for _, function := range []string{"cuGraphExecDestroy", "cuGraphDestroy"} {
		t.Run(function, func(t *testing.T) {
			firstCallFails := function + ":1:2"
			if inSoftGPUProcess(t, firstCallFails) {
				checkFailedDestruction(t)
			}
		})
	}
}

// checkFailedDestruction checks that memory stays mapped only on a rank where the graph's Close has
// failed.
func checkFailedDestruction(t *testing.T) {
	t.Helper()
	group := newGroup(t, 2, 20*time.Second)
	closeErrs := make([]error, 2) // of the graphs, by rank
	group.withSum(releasedCount, func(m *testRank, sum *repeatedSum) error {
		closeErrs[m.rank] = m.replayInNewGraph(group, sum)
		err := sum.window.Deregister()
		return errors.Join(err, sum.segment.Unmap())
	})
	for r, m := range group.ranks {
		isMapped := m.device.memory.SegmentAt(m.regions[0].segment.Address()) != nil
		wantMapped := closeErrs[r] != nil
		if isMapped != wantMapped {
			t.Errorf("rank %d: the memory is mapped: %t, want %t, because Close of the graph returned %v",
				r, isMapped, wantMapped, closeErrs[r])
		}

		m.regions = nil // already unmapped
	}

	if errors.Join(closeErrs...) == nil {
		t.Error("Close succeeded, want the injected failure")
	}
}

// halfWindow is the size of the old window in the following test, in bytes.
const halfWindow = int64(2 << 20)

// The second half of a new window has the addresses of an old window. If NCCL still has the old
// window, NCCL prefers it, because it begins at a greater address.
func TestNoCallUsesAWindowThatNCCLCouldNotDeregister(t *testing.T) {
	if !inSoftGPUProcess(t, "ncclCommWindowDeregister:1:2") {
		return
	}

	group := newGroup(t, 2, 20*time.Second)
	group.must(func(m *testRank) error {
		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		m.mapped = halfWindow // leave space for the first half of the new window
		const sumOffset = 0
		return m.sumOverWindow(group, halfWindow, sumOffset)
	})
	if err := group.ranks[0].regions[0].window.Deregister(); err == nil {
		t.Error("Deregister succeeded, want the injected failure")
	}

	_ = group.ranks[1].regions[0].window.Deregister() // may report rank 0's failure
	errs := group.each(func(m *testRank) error {
		if err := m.regions[0].segment.Unmap(); err != nil {
			return err
		}

		m.reuseAddresses()
		const sumOffset = halfWindow
		return m.sumOverWindow(group, 2*halfWindow, sumOffset)
	})
	group.checkSuccessOrFault(errs, "with a new window")
}

// sumOverWindow registers a window of ones on each of two ranks, adds the windows from the byte
// offset to the end, and checks that the sums are 2.
func (m *testRank) sumOverWindow(group *testGroup, bytes, offset int64) error {
	const elementBytes = 4
	sum, err := m.newRepeatedSum(group, windowName, bytes/elementBytes)
	if err != nil {
		return err
	}

	call := sum.call(driver.PathWindow)
	call.Send += uintptr(offset)
	call.Recv += uintptr(offset)
	call.Count = (bytes - offset) / elementBytes
	// NCCL has no window kernel for integers. The sum of the integers is also exact as a sum of
	// float32 values, because the bits of 1 and 2 represent denormal numbers.
	call.DataType = driver.Float32
	plan, err := prepare(m.group, call)
	if err != nil {
		return err
	}

	err = m.group.Launch(m.stream, plan)
	err = errors.Join(err, m.stream.Synchronize(group.t.Context()))
	if err != nil {
		return err
	}

	got, err := m.readDevice(group, call.Recv, bytes-offset)
	if err != nil {
		return err
	}

	for at := 0; at < len(got); at += elementBytes {
		if element := binary.LittleEndian.Uint32(got[at:]); element != 2 {
			return failuref("the sum at byte %d is %d, want 2", at, element)
		}
	}

	return nil
}

// replayInNewGraph captures the sum in a graph, replays the graph, checks the result and closes the
// graph.
func (m *testRank) replayInNewGraph(group *testGroup, sum *repeatedSum) error {
	g, err := m.captureWork(m.stream, func() error {
		plan, err := prepare(m.group, sum.call(driver.PathPlain))
		if err != nil {
			return err
		}

		return m.group.Launch(m.stream, plan)
	})
	const callsInGraph = 1
	if err == nil {
		err = sum.replay(m, g, m.stream, callsInGraph)
	}

	if err == nil {
		err = m.check(group, sum, m.stream)
	}

	if g != nil { // even after an error
		err = errors.Join(err, g.Close())
	}

	return err
}
