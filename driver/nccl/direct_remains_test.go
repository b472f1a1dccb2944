package nccl

import (
	"os"
	"testing"
	"time"

	"symmem/driver"
)

// TestGroupsLeaveNothingBehind makes and ends 50 groups, fewer on the software GPU, with windows
// and kernels, and counts descriptors and device memory.
func TestGroupsLeaveNothingBehind(t *testing.T) {
	groups := 50
	if soft(t) {
		groups = 15
	}
	w := newTestGroup(t, 2, time.Minute)
	var powers [2]*power
	w.regroup(0, 1)
	w.must(func(m *testRank) (err error) {
		powers[m.rank], err = m.newPower(w, 1, 600_000)
		return err
	})
	once := func() {
		w.regroup(0, 1)
		w.must(func(m *testRank) error {
			p := powers[m.rank]
			if err := m.register(w, p.stretch, 1); err != nil {
				return err
			}
			for range 2 {
				if err := p.raise(m.group, m.stream, driver.PathDirect); err != nil {
					return err
				}
			}
			return m.stream.Synchronize(t.Context())
		})
	}
	once() // what is made once and kept is made now
	files, free := open(t), w.free()
	for range groups {
		once()
	}
	// A group of ours has a descriptor and 32 MiB for each rank. NCCL keeps caches of its own.
	if now := open(t); now-files >= groups {
		t.Errorf("%d descriptors were open, now %d are", files, now)
	}
	for r, now := range w.free() {
		if lost := free[r] - now; lost >= int64(groups)<<20 {
			t.Errorf("rank %d: %d bytes are gone", r, lost)
		}
	}
}

// open counts the descriptors of the process.
func open(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// free is the free memory of each rank's device.
func (w *testGroup) free() []int64 {
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
