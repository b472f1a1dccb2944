package nccl

import (
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
)

// These tests make groups one after another, and compare the resources before and after. The first
// group is not counted, because it also allocates memory that is kept. If each of 15 groups leaks a
// file descriptor, there are 15 more descriptors at the end.

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
	w.runGroup(&sums)
	descriptorsBefore := countDescriptors(t)
	freeBefore := w.freeMemory()
	for range groups {
		w.runGroup(&sums)
	}

	checkDescriptors(t, descriptorsBefore, groups)
	// A group that leaks keeps 32 MiB on each rank. The limit of 1 MiB for each group leaves room for
	// NCCL's caches.
	limit := int64(groups) << 20
	for r, freeNow := range w.freeMemory() {
		leaked := freeBefore[r] - freeNow
		if leaked >= limit {
			t.Errorf("%d groups leaked %d bytes on rank %d, want less than %d", groups, leaked, r, limit)
		}
	}
}

// runGroup closes the previous group, connects a new one with a window, and runs two calls.
func (w *testGroup) runGroup(sums *[2]*repeatedSum) {
	w.t.Helper()
	w.regroup(0, 1)
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

		return m.stream.Synchronize(w.t.Context())
	})
}

// checkDescriptors fails the test if there is at least one new open descriptor for each group.
func checkDescriptors(t *testing.T, before, groups int) {
	t.Helper()
	now := countDescriptors(t)
	if now-before >= groups {
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
	t.Helper()
	const groups = 15
	w := newTestGroup(t, 2, time.Minute)
	w.regroup(0, 1)
	var sendBuffer uintptr // of rank 0
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(bytes)
		if err == nil && m.rank == 0 {
			sendBuffer = s.segment.Address()
		}

		return err
	})
	runGroup := func() {
		w.sendUnreceived(sendBuffer, bytes)
		w.closeUnreceived(beforeClose)
		w.regroup(0, 1)
	}
	runGroup()
	descriptorsBefore := countDescriptors(t)
	for range groups {
		runGroup()
	}

	checkDescriptors(t, descriptorsBefore, groups)
}

// sendUnreceived sends a message from rank 0 to rank 1, and waits until the Send has completed.
func (w *testGroup) sendUnreceived(buffer uintptr, bytes int64) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		if m.rank != 0 {
			return nil
		}

		const receiver = 1
		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Send, DataType: driver.Uint8, Count: bytes, Send: buffer, Root: receiver,
		})
		if err != nil {
			return err
		}

		if err := m.group.Launch(m.stream, plan); err != nil {
			return err
		}

		return m.stream.Synchronize(w.t.Context())
	})
}

// closeUnreceived calls beforeClose and closes the group on both ranks. Close may return a
// MessageError, because the message was not received.
func (w *testGroup) closeUnreceived(beforeClose func(driver.Communicator)) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		beforeClose(m.group)
		err := m.closeGroup()
		if errors.As(err, new(*driver.MessageError)) {
			return nil
		}

		return err
	})
}
