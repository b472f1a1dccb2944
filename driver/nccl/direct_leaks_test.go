package nccl

import (
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
)

// TestGroupsLeaveNothingBehind checks that groups with windows and kernels leak no memory or file
// descriptors.
func TestGroupsLeaveNothingBehind(t *testing.T) {
	groups := 50
	if usesSoftGPU(t) {
		groups = 15
	}
	w := newTestGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum
	w.regroup(0, 1)
	w.must(func(m *testRank) (err error) {
		sums[m.rank], err = m.newRepeatedSum(w, 1, 600_000)
		return err
	})
	runGroup := func() {
		w.regroup(0, 1)
		w.must(func(m *testRank) error {
			p := sums[m.rank]
			if err := m.register(w, p.region, 1); err != nil {
				return err
			}
			for range 2 {
				if err := p.launch(m.group, m.stream, driver.PathDirect); err != nil {
					return err
				}
			}
			return m.stream.Synchronize(t.Context())
		})
	}
	runGroup() // the first group also allocates memory that is kept
	files, free := openDescriptors(t), w.freeMemory()
	for range groups {
		runGroup()
	}
	// If groups leaked, each would keep a descriptor and 32 MiB on each rank. The limits are lower,
	// but leave room for NCCL's caches.
	if now := openDescriptors(t); now-files >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, files)
	}
	for r, now := range w.freeMemory() {
		limit := int64(groups) << 20
		if leaked := free[r] - now; leaked >= limit {
			t.Errorf("%d groups leaked %d bytes on rank %d, want less than %d", groups, leaked, r, limit)
		}
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func (w *testGroup) freeMemory() []int64 {
	w.t.Helper()
	free := make([]int64, len(w.ranks))
	w.must(func(m *testRank) error {
		return m.device.gpu.Do(func() (err error) {
			free[m.rank], _, err = m.device.gpu.CUDA.MemGetInfo()
			return err
		})
	})
	return free
}

// TestGroupsLeaveNoMessagesBehind checks that the file descriptors of messages that were not
// received are closed.
func TestGroupsLeaveNoMessagesBehind(t *testing.T) {
	t.Run("closed", func(t *testing.T) { closeWithMessages(t, 4096, false) })
	t.Run("failed", func(t *testing.T) { closeWithMessages(t, 32<<20, true) })
}

func closeWithMessages(t *testing.T, bytes int64, abort bool) {
	const groups = 15
	w := newTestGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	var memory [2]uintptr
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(bytes)
		if err == nil {
			memory[m.rank] = s.segment.Address()
		}
		return err
	})
	runGroup := func() {
		w.must(func(m *testRank) error {
			if m.rank != 0 {
				return nil
			}
			plan, err := prepare(m.group, driver.Call{
				Operation: driver.Send, DataType: driver.Uint8, Count: bytes, Send: memory[0],
				Root: 1,
			})
			if err != nil {
				return err
			}
			if err := m.group.Launch(m.stream, plan); err != nil {
				return err
			}
			return m.stream.Synchronize(t.Context())
		})
		w.must(func(m *testRank) error {
			if abort {
				m.group.Abort(errAborted)
			}
			if err := m.closeGroup(); !errors.As(err, new(*driver.MessageError)) {
				return err
			}
			return nil // the message was not received
		})
		w.regroup(0, 1)
	}
	runGroup() // the first group also allocates memory that is kept
	files := openDescriptors(t)
	for range groups {
		runGroup()
	}
	if now := openDescriptors(t); now-files >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, files)
	}
}
