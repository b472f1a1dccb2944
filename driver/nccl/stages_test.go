package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// closedPlane is the Plane of a group that was closed without a fault.
type closedPlane struct{ control.Plane }

func (closedPlane) Cause() error { return driver.ErrClosed }

// TestCloseWaitsBrieflyForLostRanks waits for a teardown that never ends. Close waits for the
// group's timeout, because a slow rank may still need data, unless a rank of the group has died.
func TestCloseWaitsBrieflyForLostRanks(t *testing.T) {
	const timeout = time.Hour
	w := newTestGroup(t, 2, timeout)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		m.device.RanksLost([]int{7})
		select {
		case <-c.stages.rankLost:
			return failuref("a rank of another group was lost, and Close would not wait")
		default:
		}

		time.AfterFunc(10*time.Millisecond, func() { m.device.RanksLost([]int{1 - m.rank}) })
		closed := stages{
			gpu: c.gpu, cfg: &c.cfg, plane: closedPlane{c.plane}, rankLost: c.stages.rankLost,
			memoryFreed: make(chan struct{}),
		}
		err := closed.await(closed.memoryFreed)
		var timeoutErr *driver.TimeoutError
		if !errors.As(err, &timeoutErr) || timeoutErr.Waited >= timeout {
			return failuref("await = %v, want a TimeoutError long before %v", err, timeout)
		}

		return nil
	})
}
