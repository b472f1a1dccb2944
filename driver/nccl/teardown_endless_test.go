package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
)

// TestTeardownOfEndlessDestroyEnds closes a group on two machines whose communicators NCCL never
// destroys. Each teardown must end, keep the communicator and report a timeout.
func TestTeardownOfEndlessDestroyEnds(t *testing.T) {
	requireSoftGPU(t, "has an endless ncclCommDestroy on demand")
	if !inChildProcess(t, "SOFTGPU_ENDLESS=1") {
		return
	}

	simulateTwoMachines(t, 2)
	w := newTestGroup(t, 2, 2*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		m.group = nil // so that the cleanup does not report the timeout
		_ = c.Close() // may time out before the teardown ends
		select {
		case <-c.stages.allFreed:
		case <-time.After(time.Minute):
			return errors.New("the teardown waits for ncclCommDestroy")
		}

		if err := c.teardown.result; !errors.As(err, new(*driver.TimeoutError)) {
			return failuref("the teardown returned %v, want a TimeoutError", err)
		}

		return nil
	})
}
