package nccl

import (
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
)

// TestGroupsLeaveNothingBehind connects and closes groups that have windows and run kernels, and
// checks the open descriptors and the free device memory.
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
			if err := m.register(w, p.region, 1); err != nil {
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
	once() // the first group also allocates memory that is kept
	files, free := openDescriptors(t), w.freeMemory()
	for range groups {
		once()
	}
	// A leaked group would keep a descriptor and 32 MiB on each rank. NCCL's caches keep less.
	if now := openDescriptors(t); now-files >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, files)
	}
	for r, now := range w.freeMemory() {
		if leaked := free[r] - now; leaked >= int64(groups)<<20 {
			t.Errorf("rank %d: %d bytes have leaked", r, leaked)
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

// TestGroupsLeaveNoMessagesBehind ends groups with an unreceived message and checks that the
// message's descriptors are closed.
func TestGroupsLeaveNoMessagesBehind(t *testing.T) {
	t.Run("closed", func(t *testing.T) { endWithMessages(t, 4096, false) })
	t.Run("failed", func(t *testing.T) { endWithMessages(t, 32<<20, true) })
}

func endWithMessages(t *testing.T, bytes int64, fails bool) {
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
	once := func() {
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
			if fails {
				m.group.Abort(errAborted)
			}
			if err := m.closeGroup(); !errors.As(err, new(*driver.MessageError)) {
				return err
			}
			return nil // the message was not received
		})
		w.regroup(0, 1)
	}
	once() // the first group also allocates memory that is kept
	files := openDescriptors(t)
	for range groups {
		once()
	}
	if now := openDescriptors(t); now-files >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, files)
	}
}
