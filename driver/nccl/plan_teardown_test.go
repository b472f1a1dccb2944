package nccl

import (
	"errors"
	"sync"
	"testing"
	"time"

	"symmem/driver"
)

// TestPrepareDuringTeardown prepares calls on the direct path while the group's teardown frees
// the memory for reports of the group's kernels. The race detector finds unsynchronized accesses.
func TestPrepareDuringTeardown(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	m := w.opened[0]
	s, err := m.mapRegion(1 << 20)
	if err != nil {
		t.Fatal(err)
	}

	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: 64, Path: driver.PathDirect,
		Send: s.segment.Address(), Recv: s.segment.Address(),
	}
	group, stop := m.group, make(chan struct{})
	var preparing sync.WaitGroup
	preparing.Go(func() {
		for {
			if _, err := prepare(group, call); err != nil && !errors.Is(err, driver.ErrClosed) {
				t.Error(err)
			}

			select {
			case <-stop:
				return
			default:
			}
		}
	})
	w.must(func(m *testRank) error { return m.closeGroup() })
	close(stop)
	preparing.Wait()
	if _, err := prepare(group, call); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("prepare in a closed group = %v, want ErrClosed", err)
	}
}
