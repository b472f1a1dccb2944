package nccl

import (
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
)

// These tests compare the resources of the process before and after a series of groups. One group
// precedes the series, because the first group allocates memory that the device keeps.

func TestGroupsLeaveNothingBehind(t *testing.T) {
	groupCount := 50
	if usesSoftGPU(t) {
		groupCount = 15 // the software GPU is slow
	}

	group := newTestGroup(t, 2, time.Minute)
	var sums [2]*repeatedSum // by rank
	group.regroup(0, 1)
	group.must(func(m *testRank) (err error) {
		const elements = 600_000 // arbitrary
		sums[m.rank], err = m.newRepeatedSum(group, windowName, elements)
		return err
	})
	group.replaceGroup(&sums)
	descriptorsBefore := countDescriptors(t)
	freeBefore := group.freeMemory()
	for range groupCount {
		group.replaceGroup(&sums)
	}

	checkDescriptors(t, descriptorsBefore, groupCount)
	const limitPerGroup = 1 << 20 // more than NCCL's caches grow, and less than a leak of 32 MiB
	limit := int64(groupCount) * limitPerGroup
	for r, freeNow := range group.freeMemory() {
		leaked := freeBefore[r] - freeNow
		if leaked >= limit {
			t.Errorf("%d groups leaked %d bytes on rank %d, want less than %d", groupCount, leaked, r, limit)
		}
	}
}

// replaceGroup closes the group, connects a new one with a window, and runs two calls.
func (w *testGroup) replaceGroup(sums *[2]*repeatedSum) {
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

// checkDescriptors fails the test if the groups may have leaked one file descriptor each.
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

// Messages that were never received do not keep file descriptors open.
func TestGroupsLeaveNoMessagesBehind(t *testing.T) {
	t.Run("closed", func(t *testing.T) {
		const smallMessage = 4 << 10
		doNothing := func(driver.Communicator) {}
		checkUnreceivedMessages(t, smallMessage, doNothing)
	})
	t.Run("failed", func(t *testing.T) {
		const largeMessage = 32 << 20
		abort := func(c driver.Communicator) { c.Abort(errAborted) }
		checkUnreceivedMessages(t, largeMessage, abort)
	})
}

// checkUnreceivedMessages closes groups in which rank 1 has not received a message of rank 0.
func checkUnreceivedMessages(t *testing.T, bytes int64, beforeClose func(driver.Communicator)) {
	t.Helper()
	const groups = 15
	group := newTestGroup(t, 2, time.Minute)
	group.regroup(0, 1)
	var sendBuffer uintptr // of rank 0
	group.must(func(m *testRank) error {
		s, err := m.mapRegion(bytes)
		if err == nil && m.rank == 0 {
			sendBuffer = s.segment.Address()
		}

		return err
	})
	sendAndReplaceGroup := func() {
		group.sendUnreceived(sendBuffer, bytes)
		group.closeUnreceived(beforeClose)
		group.regroup(0, 1)
	}
	sendAndReplaceGroup()
	descriptorsBefore := countDescriptors(t)
	for range groups {
		sendAndReplaceGroup()
	}

	checkDescriptors(t, descriptorsBefore, groups)
}

// sendUnreceived sends a message from rank 0, and waits until the Send has completed.
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

// closeUnreceived closes the group on both ranks. It ignores errors about the unreceived message.
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
