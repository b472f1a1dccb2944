package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestNoGraphUsesMemoryThatNCCLCouldNotRelease checks that a new graph never uses old memory at
// the same addresses. After a graph has been closed, Unmap makes NCCL release the graph's memory,
// which NCCL has mapped on other ranks. A call that Unmap makes for this purpose fails on rank 0.
func TestNoGraphUsesMemoryThatNCCLCouldNotRelease(t *testing.T) {
	for _, test := range []struct {
		name    string
		failure string // value of SOFTGPU_FAIL: "function:call:code"
	}{
		{"NCCL fails", "ncclSend:1:2"},
		// Calls 1 and 2 capture the graphs of the two ranks. Call 3 is the first one of Unmap.
		{"CUDA fails", "cuStreamBeginCapture_v2:3:2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if inSoftGPUProcess(t, test.failure) {
				checkFailedRelease(t)
			}
		})
	}
}

// checkFailedRelease makes Unmap fail on rank 0, and then maps new memory at the same addresses
// and uses it in a new graph. The new calls must succeed, or the group must have failed.
func checkFailedRelease(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	w.withSum(1<<20, func(m *testRank, p *repeatedSum) error {
		err := m.replayInNewGraph(w, p)
		return errors.Join(err, p.window.Deregister())
	})
	if err := w.ranks[0].regions[0].segment.Unmap(); err == nil {
		t.Error("Unmap succeeded, want the injected failure")
	}

	_ = w.ranks[1].regions[0].segment.Unmap() // may return the fault
	errs := w.each(func(m *testRank) error {
		m.regions, m.mapped = nil, 0 // map the next region at the same addresses
		p, err := m.newRepeatedSum(w, windowName, 1<<20)
		if err == nil {
			err = m.replayInNewGraph(w, p)
		}

		return err
	})
	w.checkSuccessOrFault(errs, "with new memory")
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
// addresses, until the device is closed and destroys the graph.
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
	w := newGroup(t, 2, 20*time.Second)
	closeErrs := make([]error, 2) // errors of Close of the graph, by rank
	w.withSum(1<<20, func(m *testRank, p *repeatedSum) error {
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

// TestNoCallUsesAWindowThatNCCLCouldNotDeregister checks that a call never uses an old window at
// the addresses of a new one. The new window begins before the old window, because NCCL prefers
// the window with the greatest address.
func TestNoCallUsesAWindowThatNCCLCouldNotDeregister(t *testing.T) {
	if !inSoftGPUProcess(t, "ncclCommWindowDeregister:1:2") {
		return
	}

	const half = int64(2 << 20) // bytes of the old window, which is the second half of the new window
	w := newGroup(t, 2, 20*time.Second)
	w.must(func(m *testRank) error {
		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		m.mapped = half // leave room for the first half of the new window
		const beginning = 0
		return m.sumOverWindow(w, half, beginning)
	})
	if err := w.ranks[0].regions[0].window.Deregister(); err == nil {
		t.Error("Deregister succeeded, want the injected failure")
	}

	_ = w.ranks[1].regions[0].window.Deregister() // may return the fault
	errs := w.each(func(m *testRank) error {
		if err := m.regions[0].segment.Unmap(); err != nil {
			return err
		}

		m.regions, m.mapped = nil, 0 // map the new window from the first address of the arena
		return m.sumOverWindow(w, 2*half, half)
	})
	w.checkSuccessOrFault(errs, "with a new window")
}

// sumOverWindow registers a new window with elements of 1 on both ranks. It adds them up in place,
// beginning at the byte offset, and checks that all sums are 2.
func (m *testRank) sumOverWindow(w *testGroup, bytes, offset int64) error {
	p, err := m.newRepeatedSum(w, windowName, bytes/4)
	if err != nil {
		return err
	}

	call := p.call(driver.PathWindow)
	call.Send, call.Recv = call.Send+uintptr(offset), call.Recv+uintptr(offset)
	call.Count = (bytes - offset) / 4
	call.DataType = driver.Float32 // no window kernel adds integers; denormal sums are exact
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
