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
		groups = 15 // it is slow
	}

	w := newTestGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum // by rank
	w.regroup(0, 1)
	w.must(func(m *testRank) (err error) {
		const elements = 600_000
		sums[m.rank], err = m.newRepeatedSum(w, windowName, elements)
		return err
	})
	runGroup := func() {
		w.regroup(0, 1) // closes the previous group
		w.must(func(m *testRank) error {
			p := sums[m.rank]
			if err := m.register(w, p.region, windowName); err != nil {
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
	descriptorsBefore, freeBefore := countDescriptors(t), w.freeMemory()
	for range groups {
		runGroup()
	}

	// A group that leaks keeps at least one descriptor, and 32 MiB on each rank. The limit of 1 MiB
	// for each group leaves room for NCCL's caches.
	checkDescriptors(t, descriptorsBefore, groups)
	for r, freeNow := range w.freeMemory() {
		limit := int64(groups) << 20
		if leaked := freeBefore[r] - freeNow; leaked >= limit {
			t.Errorf("%d groups leaked %d bytes on rank %d, want less than %d", groups, leaked, r, limit)
		}
	}
}

// checkDescriptors fails the test if there is at least one new open descriptor for each group.
func checkDescriptors(t *testing.T, before, groups int) {
	t.Helper()
	if now := countDescriptors(t); now-before >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, before)
	}
}

// countDescriptors returns the number of open file descriptors of this process.
func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}

	return len(entries)
}

// freeMemory returns the free bytes of the GPU of each rank.
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

// TestGroupsLeaveNoMessagesBehind checks that a group closes the file descriptors of messages that
// were not received, both after Close and after a failure.
func TestGroupsLeaveNoMessagesBehind(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		const smallMessage = 4 << 10
		closeWithMessages(t, smallMessage, func(driver.Communicator) {})
	})
	t.Run("failed", func(t *testing.T) {
		const largeMessage = 32 << 20
		closeWithMessages(t, largeMessage, func(c driver.Communicator) { c.Abort(errAborted) })
	})
}

// closeWithMessages checks that groups leave no descriptors open if rank 0 has sent a message to
// rank 1 that was not received. It calls beforeClose on both ranks before it closes a group.
func closeWithMessages(t *testing.T, bytes int64, beforeClose func(driver.Communicator)) {
	const groups = 15 // the smallest number of new descriptors that counts as a leak
	w := newTestGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	var buffers [2]uintptr // by rank
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(bytes)
		if err == nil {
			buffers[m.rank] = s.segment.Address()
		}

		return err
	})
	runGroup := func() {
		w.must(func(m *testRank) error {
			if m.rank != 0 {
				return nil
			}

			plan, err := prepare(m.group, driver.Call{
				Operation: driver.Send, DataType: driver.Uint8, Count: bytes, Send: buffers[0],
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
			beforeClose(m.group)
			err := m.closeGroup()
			if errors.As(err, new(*driver.MessageError)) {
				return nil // allowed, because the message was not received
			}

			return err
		})
		w.regroup(0, 1)
	}
	runGroup() // the first group also allocates memory that is kept
	descriptorsBefore := countDescriptors(t)
	for range groups {
		runGroup()
	}

	checkDescriptors(t, descriptorsBefore, groups)
}
