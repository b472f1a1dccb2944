package nccl

import (
	"errors"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// blockedPair holds two ranks that have launched a call that accesses the buffers of both ranks.
// On some ranks, a host function blocks the call until release is called.
type blockedPair struct {
	*testGroup
	sums [2]*repeatedSum
	gate chan struct{}
	done [2]chan struct{} // closed when the rank's call has completed
}

// newBlockedPair opens two ranks and launches a direct call, which is blocked on the given ranks.
func newBlockedPair(t *testing.T, timeout time.Duration, blocked ...int) *blockedPair {
	t.Helper()
	return newBlockedPairOn(t, driver.PathDirect, timeout, blocked...)
}

// newBlockedPairOn is newBlockedPair for a call on any path.
func newBlockedPairOn(
	t *testing.T, path driver.Path, timeout time.Duration, blocked ...int,
) *blockedPair {
	t.Helper()
	// On a busy machine, a short timeout could pass before both ranks have launched the call. The
	// abort would then wait for the blocked rank and keep the other rank from launching.
	h := &blockedPair{testGroup: newTestGroup(t, 2, time.Minute), gate: make(chan struct{})}
	h.regroup(0, 1)
	needDirect(t, h.opened[0].group)
	h.must(func(m *testRank) (err error) {
		if h.sums[m.rank], err = m.newRepeatedSum(h.testGroup, 1, 3<<20); err != nil {
			return err
		}

		done := make(chan struct{})
		h.done[m.rank] = done
		if slices.Contains(blocked, m.rank) {
			err = m.stream.Host(func() { <-h.gate })
		}

		return errors.Join(err, h.sums[m.rank].launch(m.group, m.stream, path),
			m.stream.Host(func() { close(done) }))
	})
	for _, m := range h.opened {
		m.device.cfg.Timeout = timeout
		m.group.(*communicator).cfg.Timeout.Set(timeout)
	}

	return h
}

// release unblocks the call and waits until it has completed on the given ranks.
func (h *blockedPair) release(ranks ...int) {
	h.t.Helper()
	close(h.gate)
	for _, r := range ranks {
		select {
		case <-h.done[r]:
		case <-time.After(20 * time.Second):
			h.t.Fatalf("rank %d: the call did not complete", r)
		}
	}
}

// closeBlockedStream closes a rank's stream while its work is blocked. Close must return an
// error: either a timeout or the fault of the group. The group waits for the same work, and its
// wait may time out first.
func (m *testRank) closeBlockedStream() error {
	err := m.stream.Close()
	m.stream = nil
	m.pinned = nil // not freed, because CUDA would wait for the whole device
	if err == nil || !m.device.gpu.MustKeepMemory() {
		return failuref("Close = %v, want an error about unfinished work", err)
	}

	return nil
}

// closeBlockedStreams closes the streams of two ranks whose calls are blocked.
func closeBlockedStreams(t *testing.T) *blockedPair {
	t.Helper()
	gpu.KernelEndTimeout = 500 * time.Millisecond
	h := newBlockedPair(t, 500*time.Millisecond, 0, 1)
	h.must((*testRank).closeBlockedStream)
	return h
}

// TestNothingIsUnmappedUnderWorkOfAClosedStream closes everything while a call is blocked. The
// call will later read and write the memory of both ranks, so the memory must stay mapped.
func TestNothingIsUnmappedUnderWorkOfAClosedStream(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	h := closeBlockedStreams(t)
	h.must(func(m *testRank) error { return checkTimeout(m.close()) })
	h.resetRanks(h.opened...)
	h.release(0, 1)
}

// checkTimeout checks that a teardown has returned a TimeoutError, because it waited too long for
// unfinished work.
func checkTimeout(err error) error {
	if timeoutErr := new(driver.TimeoutError); !errors.As(err, &timeoutErr) {
		return failuref("teardown = %v, want a TimeoutError", err)
	}

	return nil
}

func (h *blockedPair) resetRanks(ranks ...*testRank) {
	for _, m := range ranks {
		*m = testRank{number: m.number}
	}
}

// TestMemoryIsFreedAfterWorkOfAClosedStream checks that memory is freed immediately after the work
// of a closed stream has completed.
func TestMemoryIsFreedAfterWorkOfAClosedStream(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	h := newBlockedPair(t, 500*time.Millisecond, 0, 1)
	h.must((*testRank).closeBlockedStream)
	h.release(0, 1)
	h.must(func(m *testRank) error {
		isIdle := func() (bool, error) { return !m.device.gpu.MustKeepMemory(), nil }
		return gpu.PollQueryFor(20*time.Second, isIdle)
	})
	before := h.freeMemory()
	h.must((*testRank).closeGroup)
	h.must(func(m *testRank) error { return m.regions[0].segment.Unmap() })
	h.checkFreed(before)
	h.must(func(m *testRank) error {
		m.regions = nil
		return m.close()
	})
	h.resetRanks(h.opened...)
}

// checkFreed checks that each rank has freed its exchange memory and its segment.
func (h *blockedPair) checkFreed(before []int64) {
	h.t.Helper()
	for r, free := range h.freeMemory() {
		if minFree := before[r] + kernels.ExchangeBytes + h.sums[r].segment.Bytes(); free < minFree {
			h.t.Errorf("rank %d: %d bytes are free, want at least %d", r, free, minFree)
		}
	}
}

func awaitTeardown(c *communicator) error {
	return gpu.PollQueryFor(20*time.Second, func() (bool, error) {
		select {
		case <-c.stages.allFreed:
			return true, nil
		default:
			return false, nil
		}
	})
}

// TestDeferredMemoryIsFreedLater frees memory while work of a closed stream may still use it. The
// memory must actually be freed by the first suitable call after the work has completed.
func TestDeferredMemoryIsFreedLater(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	h := closeBlockedStreams(t)
	before := h.freeMemory()
	var groups [2]*communicator
	h.must(func(m *testRank) error {
		groups[m.rank] = m.group.(*communicator)
		return checkTimeout(m.closeGroup())
	})
	h.must(func(m *testRank) error { return m.regions[0].segment.Unmap() })
	h.release(0, 1)
	h.must(func(m *testRank) error {
		if err := awaitTeardown(groups[m.rank]); err != nil {
			return err
		}

		arena, err := m.device.NewArena(m.device.Info().Granularity)
		if err != nil {
			return err
		}

		return arena.Close()
	})
	h.checkFreed(before)
	h.must(func(m *testRank) error {
		m.regions = nil
		d, err := m.device, m.close()
		if d.gpu.IsHeld() {
			err = errors.Join(err, errors.New("the device has not released its context"))
		}

		return errors.Join(err, d.Close())
	})
	h.resetRanks(h.opened...)
}

// TestKernelOfNCCLOnAClosedStreamEndsWithItsGroup starts an NCCL kernel on a closed stream after
// the peer has closed the group. This kernel exits only if the communicator is aborted.
func TestKernelOfNCCLOnAClosedStreamEndsWithItsGroup(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	gpu.KernelEndTimeout = 500 * time.Millisecond
	h := newBlockedPairOn(t, driver.PathPlain, 500*time.Millisecond, 0)
	blocked, other := h.opened[0], h.opened[1]
	if err := blocked.closeBlockedStream(); err != nil {
		t.Fatal(err)
	}

	if err := other.closeGroup(); err != nil {
		t.Logf("rank 1: %v", err)
	}

	c := blocked.group.(*communicator)
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	<-c.stages.groupEnded
	h.release(0)
	if err := awaitTeardown(c); err != nil {
		t.Errorf("waiting for the teardown of rank 0: %v", err)
	}

	t.Logf("rank 0: %v", <-closed)
	_ = other.stream.Close() // returns the fault of its group
	other.stream = nil
}

// TestPeersStayMappedUnderWorkThatOutlivesItsGroup deregisters a window after the group has failed
// but before a kernel of the group starts. The kernel may read a peer's memory, so Deregister must
// not unmap that memory.
func TestPeersStayMappedUnderWorkThatOutlivesItsGroup(t *testing.T) {
	h := newBlockedPair(t, time.Minute, 0)
	blocked, other := h.opened[0], h.opened[1]
	w := blocked.regions[0].window.(*window)
	peer := w.addresses[other.rank]
	other.group.Abort(errAborted)
	if err := other.stream.Synchronize(t.Context()); !errors.Is(err, errAborted) {
		t.Fatalf("Synchronize = %v, want %v", err, errAborted)
	}

	<-blocked.group.(*communicator).stages.kernelsEnded
	if err := w.Deregister(); err != nil {
		t.Error(err)
	}

	if !blocked.device.gpu.IsMapped(peer) {
		t.Error("the peer's segment was unmapped")
	}

	h.release(0)
	if err := blocked.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("Synchronize = %v, want ErrFault", err)
	}

	if err := checkTimeout(blocked.closeGroup()); err != nil {
		t.Error(err)
	}

	if _, err := blocked.device.gpu.Reclaim(); err != nil || blocked.device.gpu.IsMapped(peer) {
		t.Errorf("the peer's segment is still mapped: %v", err)
	}
}

// TestOwnMemoryStaysMappedUnderWorkThatOutlivesItsGroup unmaps a rank's memory after the group
// has failed, and then starts a kernel that reads and poisons that memory. The memory must stay
// mapped until the kernel has exited.
func TestOwnMemoryStaysMappedUnderWorkThatOutlivesItsGroup(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	h := newBlockedPair(t, time.Minute, 0)
	blocked, other := h.opened[0], h.opened[1]
	other.group.Abort(errAborted)
	if err := other.stream.Synchronize(t.Context()); !errors.Is(err, errAborted) {
		t.Fatalf("Synchronize = %v, want %v", err, errAborted)
	}

	<-blocked.group.(*communicator).stages.kernelsEnded
	own := blocked.regions[0]
	bytes := own.segment.Bytes()
	if err := errors.Join(own.window.Deregister(), own.segment.Unmap()); err != nil {
		t.Error(err)
	}

	blocked.regions = nil
	h.release(0)
	if err := blocked.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("Synchronize = %v, want ErrFault", err)
	}

	if err := awaitTeardown(blocked.group.(*communicator)); err != nil {
		t.Fatal(err)
	}

	before := h.freeMemory()[0]
	gate := make(chan struct{})
	defer close(gate) // work that was queued later must not keep the memory mapped
	if err := blocked.stream.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}

	if _, err := blocked.device.gpu.Reclaim(); err != nil {
		t.Error(err)
	}

	if free := h.freeMemory()[0]; free < before+bytes {
		t.Errorf("%d bytes are free, want at least %d", free, before+bytes)
	}

	if err := checkTimeout(blocked.closeGroup()); err != nil {
		t.Error(err)
	}
}

// TestPeersStayMappedUntilGroupIsClosed aborts a group after its program has got the addresses of
// peers. Kernels that symmem does not know may use them until the group is closed.
func TestPeersStayMappedUntilGroupIsClosed(t *testing.T) {
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 20)
		if err != nil {
			return err
		}

		if err := m.register(w, s, windowName); err != nil {
			return err
		}

		addresses, err := s.window.(driver.PeerMapper).PeerAddresses()
		if err != nil {
			return err
		}

		c := m.group.(*communicator)
		c.Abort(nil)
		<-c.stages.kernelsEnded
		select {
		case <-c.stages.allFreed:
			return failuref("the memory was freed before the group was closed")
		case <-time.After(100 * time.Millisecond):
		}

		if _, err := m.readDevice(w, addresses[1-m.rank], 16); err != nil {
			return failuref("reading the peer's memory after a fault: %v", err)
		}

		return nil
	})
	w.must(func(m *testRank) error { return m.closeGroup() }) // waits until the memory is freed
}

// TestStopWordStaysUnusedUntilGroupIsClosed aborts a group after the program has got the address of
// its stop word. No other group may use the word until the program has closed the group.
func TestStopWordStaysUnusedUntilGroupIsClosed(t *testing.T) {
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		word := c.Inspect().StopWord
		if word == 0 {
			return nil // the GPUs have no direct path
		}

		c.Abort(nil)
		<-c.stages.allFreed
		if isFree, err := m.canTakeStopWord(word); isFree || err != nil {
			return failuref("another group gets the stop word before the group is closed: %v", err)
		}

		if err := m.closeGroup(); err != nil {
			return err
		}

		if isFree, err := m.canTakeStopWord(word); !isFree || err != nil {
			return failuref("the stop word is not free after the group was closed: %v", err)
		}

		return nil
	})
}

// canTakeStopWord reports whether one of the device's next groups would get the stop word.
func (m *testRank) canTakeStopWord(word uintptr) (bool, error) {
	var taken []*kernels.Report
	defer func() { m.device.reports.Put(taken...) }()
	isTaken := false
	err := m.device.gpu.Do(func() error {
		for range 100 {
			report, err := m.device.reports.Take(m.device.gpu.CUDA)
			if err != nil {
				return err
			}

			taken = append(taken, report)
			isTaken = isTaken || gpu.AddressOf(report)+kernels.EndOffset == word
		}

		return nil
	})
	return isTaken, err
}
