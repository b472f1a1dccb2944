package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// NCCL remembers memory by address. If it fails to release unmapped memory on one rank, new memory
// at the same address must not be mistaken for the old memory. New calls either succeed or report a
// failed group.
func TestNoGraphUsesMemoryThatNCCLCouldNotRelease(t *testing.T) {
	for _, test := range []struct {
		name    string
		failure string // function:call:code
	}{
		{name: "NCCL fails", failure: "ncclSend:1:2"},
		// The first two calls capture the graphs of the two ranks. Unmap makes the third.
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
	w := newGroup(t, 2, 20*time.Second)
	w.withSum(releasedCount, func(m *testRank, p *repeatedSum) error {
		err := m.replayInNewGraph(w, p)
		return errors.Join(err, p.window.Deregister())
	})
	if err := w.ranks[0].regions[0].segment.Unmap(); err == nil {
		t.Error("Unmap succeeded, want the injected failure")
	}

	_ = w.ranks[1].regions[0].segment.Unmap() // may report rank 0's failure
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

const releasedCount = 1 << 20 // elements

// reuseAddresses makes the next region begin at the first address of the arena.
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

// NCCL cannot release the memory of a graph that CUDA does not destroy.
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

// checkFailedDestruction checks that memory stays mapped only on the rank where Close of the graph
// has failed.
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

// halfWindow is the size in bytes of the old window in the following test. The new window is twice
// as large, and its second half has the old window's addresses. NCCL prefers the window with the
// greatest address, the old one.
const halfWindow = int64(2 << 20)

func TestNoCallUsesAWindowThatNCCLCouldNotDeregister(t *testing.T) {
	if !inSoftGPUProcess(t, "ncclCommWindowDeregister:1:2") {
		return
	}

	w := newGroup(t, 2, 20*time.Second)
	w.must(func(m *testRank) error {
		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		m.mapped = halfWindow // skip the first half of the new window
		const beginning = 0
		return m.sumOverWindow(w, halfWindow, beginning)
	})
	if err := w.ranks[0].regions[0].window.Deregister(); err == nil {
		t.Error("Deregister succeeded, want the injected failure")
	}

	_ = w.ranks[1].regions[0].window.Deregister() // may report rank 0's failure
	errs := w.each(func(m *testRank) error {
		if err := m.regions[0].segment.Unmap(); err != nil {
			return err
		}

		m.reuseAddresses()
		return m.sumOverWindow(w, 2*halfWindow, halfWindow)
	})
	w.checkSuccessOrFault(errs, "with a new window")
}

// sumOverWindow registers a window of ones on both ranks, and checks that their sums from the byte
// offset to the end are 2.
func (m *testRank) sumOverWindow(w *testGroup, bytes, offset int64) error {
	p, err := m.newRepeatedSum(w, windowName, bytes/4)
	if err != nil {
		return err
	}

	call := p.call(driver.PathWindow)
	call.Send += uintptr(offset)
	call.Recv += uintptr(offset)
	call.Count = (bytes - offset) / 4
	// NCCL has no window kernel for integers. As float32 bits, 1 and 2 are denormal numbers, which add
	// up exactly.
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

// replayInNewGraph also checks the result and closes the graph.
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
