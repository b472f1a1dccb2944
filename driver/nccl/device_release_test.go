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
// which NCCL has mapped on other ranks. A call that Unmap makes for this purpose fails.
func TestNoGraphUsesMemoryThatNCCLCouldNotRelease(t *testing.T) {
	for name, failure := range map[string]string{ // values of SOFTGPU_FAIL
		"NCCL fails": "ncclSend:1:2", "CUDA fails": "cuStreamBeginCapture_v2:3:2",
	} {
		t.Run(name, func(t *testing.T) {
			if inSoftGPUProcess(t, failure) {
				checkFailedRelease(t)
			}
		})
	}
}

func checkFailedRelease(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	w.withSum(1<<20, func(m *testRank, p *repeatedSum) error {
		return errors.Join(m.replayInNewGraph(w, p), p.window.Deregister())
	})
	if err := w.ranks[0].regions[0].segment.Unmap(); err == nil {
		t.Error("Unmap succeeded, want the injected failure")
	}
	_ = w.ranks[1].regions[0].segment.Unmap() // may return the fault
	errs := w.each(func(m *testRank) error {
		m.regions, m.mapped = nil, 0 // map the next region at the same addresses
		p, err := m.newRepeatedSum(w, 1, 1<<20)
		if err == nil {
			err = m.replayInNewGraph(w, p)
		}
		return err
	})
	w.checkSuccessOrFault(errs, "with new memory")
}

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
			if inSoftGPUProcess(t, function+":1:2") {
				checkFailedDestruction(t)
			}
		})
	}
}

func checkFailedDestruction(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	closeErrs := make([]error, 2) // errors of Close of the graph, by rank
	w.withSum(1<<20, func(m *testRank, p *repeatedSum) error {
		closeErrs[m.rank] = m.replayInNewGraph(w, p)
		return errors.Join(p.window.Deregister(), p.segment.Unmap())
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
		m.mapped = half // leave room for the first half of the new window
		return errors.Join(m.group.(*communicator).UseWindows(t.Context()),
			m.sumOverWindow(w, half, 0))
	})
	if err := w.ranks[0].regions[0].window.Deregister(); err == nil {
		t.Error("Deregister succeeded, want the injected failure")
	}
	_ = w.ranks[1].regions[0].window.Deregister() // may return the fault
	errs := w.each(func(m *testRank) error {
		if err := m.regions[0].segment.Unmap(); err != nil {
			return err
		}
		m.regions, m.mapped = nil, 0
		return m.sumOverWindow(w, 2*half, half)
	})
	w.checkSuccessOrFault(errs, "with a new window")
}

// sumOverWindow registers a new window with elements of 1 on both ranks. It adds them up in place,
// beginning at the byte offset, and checks that all sums are 2.
func (m *testRank) sumOverWindow(w *testGroup, bytes, offset int64) error {
	p, err := m.newRepeatedSum(w, 1, bytes/4)
	if err != nil {
		return err
	}
	call := p.call(driver.PathWindow)
	call.Send, call.Recv = call.Send+uintptr(offset), call.Recv+uintptr(offset)
	call.Count = (bytes - offset) / 4
	call.DataType = driver.Float32 // no window kernel adds integers; denormal sums are exact
	plan, err := prepare(m.group, call)
	if err == nil {
		err = errors.Join(m.group.Launch(m.stream, plan), m.stream.Synchronize(w.t.Context()))
	}
	if err != nil {
		return err
	}
	got, err := m.readDevice(w, call.Recv, bytes-offset)
	for at := 0; at < len(got) && err == nil; at += 4 {
		if v := binary.LittleEndian.Uint32(got[at:]); v != 2 {
			err = failuref("byte %d has a sum of %d, want 2", at, v)
		}
	}
	return err
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
	if err == nil {
		err = p.replay(m, g, m.stream, 1)
	}
	if err == nil {
		err = m.check(w, p, m.stream)
	}
	if g != nil {
		err = errors.Join(err, g.Close())
	}
	return err
}
