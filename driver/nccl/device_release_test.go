package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// NCCL maps the memory of a rank on the other ranks, for a graph or a window (memory that is
// registered with NCCL). When the memory is unmapped, NCCL must release it on the other ranks, too.
// Otherwise, this could happen:
//
//  1. Rank 0 unmaps old memory at address 0x1000, but NCCL fails to release it.
//  2. Rank 0 maps new memory at the same address, and a new call uses it.
//  3. NCCL finds the old memory for address 0x1000, and the call uses that instead.
//
// These tests make the release fail on one rank. Step 3 must not happen: a new call either computes
// the correct result in the new memory, or fails because the group has failed.

// TestNoGraphUsesMemoryThatNCCLCouldNotRelease checks that a new graph does not use old memory. On
// rank 0, Unmap of the memory of a closed graph fails, because a function of NCCL or CUDA fails.
func TestNoGraphUsesMemoryThatNCCLCouldNotRelease(t *testing.T) {
	for _, test := range []struct {
		name    string
		failure string // value of SOFTGPU_FAIL: "function:call:code"
	}{
		{name: "NCCL fails", failure: "ncclSend:1:2"},
		// Calls 1 and 2 capture the graphs of the two ranks. Call 3 is the first one of Unmap.
		{name: "CUDA fails", failure: "cuStreamBeginCapture_v2:3:2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if inSoftGPUProcess(t, test.failure) {
				checkFailedRelease(t)
			}
		})
	}
}

// checkFailedRelease uses memory in a graph on both ranks, and makes Unmap fail on rank 0. Then it
// uses new memory at the same addresses in a new graph.
func checkFailedRelease(t *testing.T) {
	t.Helper()
	w := newGroup(t, 2, 20*time.Second)
	w.withSum(releasedCount, func(m *testRank, p *repeatedSum) error {
		err := m.replayInNewGraph(w, p)
		return errors.Join(err, p.window.Deregister())
	})
	if err := w.ranks[0].regions[0].segment.Unmap(); err == nil {
		t.Error("Unmap succeeded, want the injected failure")
	}

	_ = w.ranks[1].regions[0].segment.Unmap() // may return the fault
	errs := w.each(func(m *testRank) error {
		m.reuseAddresses()
		p, err := m.newRepeatedSum(w, windowName, releasedCount)
		if err == nil {
			err = m.replayInNewGraph(w, p)
		}

		return err
	})
	w.checkSuccessOrFault(errs, "with new memory")
}

// releasedCount is the number of elements of the calls in graphs.
const releasedCount = 1 << 20

// reuseAddresses makes the next region begin at the first address of the arena. It forgets the old
// regions.
func (m *testRank) reuseAddresses() {
	m.regions = nil
	m.mapped = 0
}

// checkSuccessOrFault fails the test if a rank has an error although its group has not failed.
// errs is indexed by rank.
func (w *testGroup) checkSuccessOrFault(errs []error, situation string) {
	w.t.Helper()
	for r, err := range errs {
		if err != nil && w.ranks[r].group.Cause() == nil {
			w.t.Errorf("rank %d: %s, got %v, want success or a fault of the group", r, situation, err)
		}
	}
}

// TestGraphThatIsNotDestroyedKeepsMemory makes CUDA fail to destroy a graph, so that NCCL cannot
// release the graph's memory. The memory must stay mapped, so that no new memory gets its
// addresses.
func TestGraphThatIsNotDestroyedKeepsMemory(t *testing.T) {
	for _, function := range []string{"cuGraphExecDestroy", "cuGraphDestroy"} {
		t.Run(function, func(t *testing.T) {
			firstCallFails := function + ":1:2" // with code 2
			if inSoftGPUProcess(t, firstCallFails) {
				checkFailedDestruction(t)
			}
		})
	}
}

// checkFailedDestruction closes a graph on each rank, which fails on one of them, and then unmaps
// the memory of the graph. It must stay mapped only on the rank where Close has failed.
func checkFailedDestruction(t *testing.T) {
	t.Helper()
	w := newGroup(t, 2, 20*time.Second)
	closeErrs := make([]error, 2) // of the graphs, by rank
	w.withSum(releasedCount, func(m *testRank, p *repeatedSum) error {
		closeErrs[m.rank] = m.replayInNewGraph(w, p)
		err := p.window.Deregister()
		return errors.Join(err, p.segment.Unmap())
	})
	for r, m := range w.ranks {
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

// halfWindow is the size in bytes of the old window in the following test, and half the size of the
// new one:
//
//	old window               [0, 2 MiB)     later the second half of the new window
//	new window    [0, 2 MiB) [2, 4 MiB)
const halfWindow = int64(2 << 20)

// TestNoCallUsesAWindowThatNCCLCouldNotDeregister makes Deregister of the old window fail on rank
// 0. A call on the second half of the new window must not use the old window. The new window begins
// before the old one, because NCCL prefers the window with the greatest address.
func TestNoCallUsesAWindowThatNCCLCouldNotDeregister(t *testing.T) {
	if !inSoftGPUProcess(t, "ncclCommWindowDeregister:1:2") {
		return
	}

	w := newGroup(t, 2, 20*time.Second)
	w.must(func(m *testRank) error {
		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		m.mapped = halfWindow // leave room for the first half of the new window
		const beginning = 0
		return m.sumOverWindow(w, halfWindow, beginning)
	})
	if err := w.ranks[0].regions[0].window.Deregister(); err == nil {
		t.Error("Deregister succeeded, want the injected failure")
	}

	_ = w.ranks[1].regions[0].window.Deregister() // may return the fault
	errs := w.each(func(m *testRank) error {
		if err := m.regions[0].segment.Unmap(); err != nil {
			return err
		}

		m.reuseAddresses()
		return m.sumOverWindow(w, 2*halfWindow, halfWindow)
	})
	w.checkSuccessOrFault(errs, "with a new window")
}

// sumOverWindow registers a new window of the given size. Its elements are 1 on both ranks.
// sumOverWindow adds them up in place, from the byte offset to the end, and checks that all sums
// are 2.
func (m *testRank) sumOverWindow(w *testGroup, bytes, offset int64) error {
	p, err := m.newRepeatedSum(w, windowName, bytes/4)
	if err != nil {
		return err
	}

	call := p.call(driver.PathWindow)
	call.Send += uintptr(offset)
	call.Recv += uintptr(offset)
	call.Count = (bytes - offset) / 4
	// No window kernel adds integers. As float32 numbers, the integers 1 are denormal. Their sum is
	// exact, and has the bits of the integer 2.
	call.DataType = driver.Float32
	plan, err := prepare(m.group, call)
	if err != nil {
		return err
	}

	err = m.group.Launch(m.stream, plan)
	err = errors.Join(err, m.stream.Synchronize(w.t.Context()))
	if err != nil {
		return err
	}

	got, err := m.readDevice(w, call.Recv, bytes-offset)
	if err != nil {
		return err
	}

	for at := 0; at < len(got); at += 4 {
		if v := binary.LittleEndian.Uint32(got[at:]); v != 2 {
			return failuref("the sum at byte %d is %d, want 2", at, v)
		}
	}

	return nil
}

// replayInNewGraph captures a call on the plain path, replays the graph once, checks the result,
// and closes the graph.
func (m *testRank) replayInNewGraph(w *testGroup, p *repeatedSum) error {
	g, err := m.captureWork(m.stream, func() error {
		plan, err := prepare(m.group, p.call(driver.PathPlain))
		if err != nil {
			return err
		}

		return m.group.Launch(m.stream, plan)
	})
	const callsInGraph = 1
	if err == nil {
		err = p.replay(m, g, m.stream, callsInGraph)
	}

	if err == nil {
		err = m.check(w, p, m.stream)
	}

	if g != nil { // even after an error
		err = errors.Join(err, g.Close())
	}

	return err
}
