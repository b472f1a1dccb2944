package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestNoGraphUsesMemoryThatNCCLCouldNotRelease lets symmem fail to make NCCL unmap, on other ranks,
// the memory of a closed graph. A graph over new memory at the same addresses must not use the old
// memory.
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
