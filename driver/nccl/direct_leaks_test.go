package nccl

import (
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
)

// These tests compare resources before and after a series of groups. An earlier group allocates the
// memory that the device keeps.
func TestGroupsLeaveNothingBehind(t *testing.T) {
	groups := 50
	if usesSoftGPU(t) {
		groups = 15 // the software GPU is slow
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
	const leakPerGroup = 1 << 20 // NCCL's caches grow less, and a real leak has 32 MiB
	limit := int64(groups) * leakPerGroup
	for r, freeNow := range w.freeMemory() {
		leaked := freeBefore[r] - freeNow
		if leaked >= limit {
			t.Errorf("%d groups leaked %d bytes on rank %d, want less than %d", groups, leaked, r, limit)
		}
	}
}

// runGroup replaces the group by a new one with a window, and runs two calls.
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

// checkDescriptors fails the test if each group may have leaked a file descriptor.
func checkDescriptors(t *testing.T, before, groups int) {
	t.Helper()
	now := countDescriptors(t)
	if now-before >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, before)
	}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}

	return len(entries)
}

// freeMemory returns the free bytes of each rank's GPU.
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

// Messages that were never received must not keep file descriptors open.
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

// closeWithMessages checks groups in which rank 1 does not receive a message.
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

// sendUnreceived waits until the Send has completed.
func (w *testGroup) sendUnreceived(buffer uintptr, bytes int64) {
	w.t.Helper()
	w.must(func(m *testRank) error {
		const sender, receiver = 0, 1
		if m.rank != sender {
			return nil
		}

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

// closeUnreceived closes the group on both ranks. Close may report the message.
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
