package nccl

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestNoGraphUsesMemoryThatNCCLCouldNotRelease makes a call fail with which symmem has NCCL unmap
// the memory of a closed graph on other ranks. A graph over new memory at the same addresses must
// not use the old memory.
func TestNoGraphUsesMemoryThatNCCLCouldNotRelease(t *testing.T) {
	for name, call := range map[string]string{
		"NCCL fails": "ncclSend:1:2", "CUDA fails": "cuStreamBeginCapture_v2:3:2",
	} {
		t.Run(name, func(t *testing.T) {
			if inSoftGPUProcess(t, call) {
				failRelease(t)
			}
		})
	}
}

func failRelease(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	w.withSum(1<<20, func(m *testRank, p *repeatedSum) error {
		return errors.Join(m.replayInNewGraph(w, p), p.window.Deregister())
	})
	if err := w.ranks[0].regions[0].segment.Unmap(); err == nil {
		t.Error("Unmap succeeded, want the injected failure")
	}
	_ = w.ranks[1].regions[0].segment.Unmap() // may return the fault
	for r, err := range w.each(func(m *testRank) error {
		m.regions, m.mapped = nil, 0
		p, err := m.newRepeatedSum(w, 1, 1<<20)
		if err == nil {
			err = m.replayInNewGraph(w, p)
		}
		return err
	}) {
		if err != nil && w.ranks[r].group.Cause() == nil {
			t.Errorf("rank %d: with new memory, got %v, want success or a fault of the group", r, err)
		}
	}
}

// TestGraphThatIsNotDestroyedKeepsMemory lets CUDA fail to destroy a graph, so that NCCL cannot
// release the graph's memory. New memory must not be mapped at the same addresses. When the device
// is closed, it destroys the graph.
func TestGraphThatIsNotDestroyedKeepsMemory(t *testing.T) {
	for _, function := range []string{"cuGraphExecDestroy", "cuGraphDestroy"} {
		t.Run(function, func(t *testing.T) {
			if inSoftGPUProcess(t, function+":1:2") {
				failDestruction(t)
			}
		})
	}
}

func failDestruction(t *testing.T) {
	w := newGroup(t, 2, 20*time.Second)
	closeErrs := make([]error, 2)
	w.withSum(1<<20, func(m *testRank, p *repeatedSum) error {
		closeErrs[m.rank] = m.replayInNewGraph(w, p)
		return errors.Join(p.window.Deregister(), p.segment.Unmap())
	})
	for r, m := range w.ranks {
		memory, address := m.device.memory, m.regions[0].segment.Address()
		if isMapped := memory.SegmentAt(address) != nil; isMapped != (closeErrs[r] != nil) {
			t.Errorf("rank %d: the memory is mapped: %t; Close of the graph returned %v", r, isMapped,
				closeErrs[r])
		}
		m.regions = nil
	}
	if errors.Join(closeErrs...) == nil {
		t.Error("Close succeeded, want the injected failure")
	}
}

// TestNoCallUsesAWindowThatNCCLCouldNotDeregister is
// TestNoGraphUsesMemoryThatNCCLCouldNotRelease for a window. The new window begins before the old
// one, because NCCL prefers the window with the greatest address.
func TestNoCallUsesAWindowThatNCCLCouldNotDeregister(t *testing.T) {
	if !inSoftGPUProcess(t, "ncclCommWindowDeregister:1:2") {
		return
	}
	const half = int64(2 << 20)
	w := newGroup(t, 2, 20*time.Second)
	w.must(func(m *testRank) error {
		m.mapped = half
		return errors.Join(m.group.(*communicator).UseWindows(t.Context()),
			m.sumOverWindow(w, half, 0))
	})
	if err := w.ranks[0].regions[0].window.Deregister(); err == nil {
		t.Error("Deregister succeeded, want the injected failure")
	}
	_ = w.ranks[1].regions[0].window.Deregister() // may return the fault
	for r, err := range w.each(func(m *testRank) error {
		if err := m.regions[0].segment.Unmap(); err != nil {
			return err
		}
		m.regions, m.mapped = nil, 0
		return m.sumOverWindow(w, 2*half, half)
	}) {
		if err != nil && w.ranks[r].group.Cause() == nil {
			t.Errorf("rank %d: with a new window, got %v, want success or a fault of the group", r, err)
		}
	}
}

// sumOverWindow registers a new segment, adds up its contents from an offset on, and checks them.
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

// replayInNewGraph replays a call on the plain path, checks the result, and closes the graph.
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
