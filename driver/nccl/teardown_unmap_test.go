package nccl

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
)

// blockedPair runs a call of two ranks that access each other's buffers. The call is blocked by a
// host function on some ranks.
type blockedPair struct {
	*testGroup
	powers [2]*power
	gate   chan struct{}
	// passed is closed, by rank, once the call has ended.
	passed [2]chan struct{}
}

// newBlockedPair queues a call with a direct kernel. A host function blocks it on some ranks until
// release.
func newBlockedPair(t *testing.T, timeout time.Duration, blocked ...int) *blockedPair {
	t.Helper()
	return newBlockedPairOn(t, driver.PathDirect, timeout, blocked...)
}

// newBlockedPairOn implements newBlockedPair for any path.
func newBlockedPairOn(
	t *testing.T, path driver.Path, timeout time.Duration, blocked ...int,
) *blockedPair {
	t.Helper()
	h := &blockedPair{testGroup: newTestGroup(t, 2, timeout), gate: make(chan struct{})}
	h.regroup(0, 1)
	needDirect(t, h.opened[0].group)
	h.must(func(m *testRank) (err error) {
		if h.powers[m.rank], err = m.newPower(h.testGroup, 1, 3<<20); err != nil {
			return err
		}
		passed := make(chan struct{})
		h.passed[m.rank] = passed
		if slices.Contains(blocked, m.rank) {
			err = m.stream.Host(func() { <-h.gate })
		}
		return errors.Join(err, h.powers[m.rank].raise(m.group, m.stream, path),
			m.stream.Host(func() { close(passed) }))
	})
	return h
}

// release unblocks the calls, and waits until they have ended on some ranks.
func (h *blockedPair) release(ranks ...int) {
	h.t.Helper()
	close(h.gate)
	for _, r := range ranks {
		select {
		case <-h.passed[r]:
		case <-time.After(20 * time.Second):
			h.t.Fatalf("rank %d: the call does not end", r)
		}
	}
}

// closeStream closes a rank's stream, whose work does not end in time. Close returns a timeout, or
// the fault of the group, which waits for the same work.
func (m *testRank) closeStream() error {
	err := m.stream.Close()
	m.stream = nil
	m.pinned = nil // CUDA waits for the whole device before it frees such memory
	if err == nil || !m.device.gpu.KeepsMemory() {
		return fmt.Errorf("Close returned %w, want an error about unfinished work", err)
	}
	return nil
}

// closeUnderWork closes the streams of two ranks whose calls are blocked.
func closeUnderWork(t *testing.T) *blockedPair {
	t.Helper()
	gpu.EndingTime = 500 * time.Millisecond
	h := newBlockedPair(t, 500*time.Millisecond, 0, 1)
	h.must((*testRank).closeStream)
	return h
}

// TestNothingIsUnmappedUnderWorkOfAClosedStream closes everything while calls are blocked, which
// then read and write the memory of both ranks.
func TestNothingIsUnmappedUnderWorkOfAClosedStream(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := closeUnderWork(t)
	h.must(func(m *testRank) error { return wantOverdue(m.close()) })
	h.forget(h.opened...)
	h.release(0, 1)
}

// wantOverdue returns an error unless err is a TimeoutError about the end of a group, which waits
// for unfinished work.
func wantOverdue(err error) error {
	if overdue := new(driver.TimeoutError); !errors.As(err, &overdue) {
		return fmt.Errorf("got %w, want a TimeoutError", err)
	}
	return nil
}

// forget resets ranks that the test has closed.
func (h *blockedPair) forget(ranks ...*testRank) {
	for _, m := range ranks {
		*m = testRank{number: m.number}
	}
}

// TestMemoryIsFreedAfterWorkOfAClosedStream frees memory after the work of a closed stream has
// ended.
func TestMemoryIsFreedAfterWorkOfAClosedStream(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := newBlockedPair(t, 500*time.Millisecond, 0, 1)
	h.must((*testRank).closeStream)
	h.release(0, 1)
	h.must(func(m *testRank) error {
		ended := func() (bool, error) { return !m.device.gpu.KeepsMemory(), nil }
		return gpu.Within(20*time.Second, ended)
	})
	before := h.free()
	h.must((*testRank).leave)
	h.must(func(m *testRank) error { return m.owned[0].segment.Unmap() })
	for r, free := range h.free() {
		if least := before[r] + kernels.ExchangeBytes + h.powers[r].segment.Bytes(); free < least {
			t.Errorf("rank %d: %d bytes are free, want %d", r, free, least)
		}
	}
	h.must(func(m *testRank) error {
		m.owned = nil
		return m.close()
	})
	h.forget(h.opened...)
}

// tornDown waits for the end of a group's teardown.
func tornDown(c *communicator) error {
	return gpu.Within(20*time.Second, func() (bool, error) {
		select {
		case <-c.stages.tornDown:
			return true, nil
		default:
			return false, nil
		}
	})
}

// TestDeferredMemoryIsFreedLater frees memory while work of a closed stream may use it. The memory
// is freed by a later call, after that work has ended.
func TestDeferredMemoryIsFreedLater(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := closeUnderWork(t)
	before := h.free()
	var left [2]*communicator
	h.must(func(m *testRank) error {
		left[m.rank] = m.group.(*communicator)
		return wantOverdue(m.leave())
	})
	h.must(func(m *testRank) error { return m.owned[0].segment.Unmap() })
	h.release(0, 1)
	h.must(func(m *testRank) error {
		if err := tornDown(left[m.rank]); err != nil {
			return err
		}
		arena, err := m.device.NewArena(m.device.Info().Granularity)
		if err != nil {
			return err
		}
		return arena.Close()
	})
	for r, free := range h.free() {
		if least := before[r] + kernels.ExchangeBytes + h.powers[r].segment.Bytes(); free < least {
			t.Errorf("rank %d: %d bytes are free, want %d", r, free, least)
		}
	}
	h.must(func(m *testRank) error {
		m.owned = nil
		d, err := m.device, m.close()
		if d.gpu.Held() {
			err = errors.Join(err, errors.New("the device has not released its context"))
		}
		return errors.Join(err, d.Close())
	})
	h.forget(h.opened...)
}

// TestKernelOfNCCLOnAClosedStreamEndsWithItsGroup starts a kernel of NCCL after its peer has left:
// only an abort ends such a kernel.
func TestKernelOfNCCLOnAClosedStreamEndsWithItsGroup(t *testing.T) {
	if !apart(t, "") {
		return
	}
	gpu.EndingTime = 500 * time.Millisecond
	h := newBlockedPairOn(t, driver.PathPlain, 500*time.Millisecond, 0)
	late, early := h.opened[0], h.opened[1]
	if err := late.closeStream(); err != nil {
		t.Fatal(err)
	}
	if err := early.leave(); err != nil {
		t.Logf("rank 1: %v", err)
	}
	c := late.group.(*communicator)
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	<-c.stages.ended
	h.release(0)
	if err := tornDown(c); err != nil {
		t.Errorf("the teardown of rank 0 does not end: %v", err)
	}
	t.Logf("rank 0: %v", <-closed)
	_ = early.stream.Close() // returns the fault of its group
	early.stream = nil
}

// TestPeersStayMappedUnderWorkThatOutlivesItsGroup starts a kernel after its group has failed. It
// may read the memory of a peer, which Deregister must not unmap.
func TestPeersStayMappedUnderWorkThatOutlivesItsGroup(t *testing.T) {
	h := newBlockedPair(t, time.Minute, 0)
	late, early := h.opened[0], h.opened[1]
	w := late.owned[0].window.(*window)
	peer := w.at[early.rank]
	early.group.Abort(errAborted)
	if err := early.stream.Synchronize(t.Context()); !errors.Is(err, errAborted) {
		t.Fatalf("got %v, want %v", err, errAborted)
	}
	<-late.group.(*communicator).stages.kernelsEnded
	if err := w.Deregister(); err != nil {
		t.Error(err)
	}
	if !late.device.gpu.IsMapped(peer) {
		t.Error("the segment of the peer was unmapped")
	}
	h.release(0)
	if err := late.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want ErrFault", err)
	}
	if err := wantOverdue(late.leave()); err != nil {
		t.Error(err)
	}
	if _, err := late.device.gpu.Reclaim(); err != nil || late.device.gpu.IsMapped(peer) {
		t.Errorf("the segment of the peer is still mapped: %v", err)
	}
}

// TestOwnMemoryStaysMappedUnderWorkThatOutlivesItsGroup starts a kernel after its group has failed,
// which reads and poisons the memory of its own rank.
func TestOwnMemoryStaysMappedUnderWorkThatOutlivesItsGroup(t *testing.T) {
	if !apart(t, "") {
		return
	}
	h := newBlockedPair(t, time.Minute, 0)
	late, early := h.opened[0], h.opened[1]
	early.group.Abort(errAborted)
	if err := early.stream.Synchronize(t.Context()); !errors.Is(err, errAborted) {
		t.Fatalf("got %v, want %v", err, errAborted)
	}
	<-late.group.(*communicator).stages.kernelsEnded
	own := late.owned[0]
	bytes := own.segment.Bytes()
	if err := errors.Join(own.window.Deregister(), own.segment.Unmap()); err != nil {
		t.Error(err)
	}
	late.owned = nil
	h.release(0)
	if err := late.stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want ErrFault", err)
	}
	if err := tornDown(late.group.(*communicator)); err != nil {
		t.Fatal(err)
	}
	before := h.free()[0]
	gate := make(chan struct{})
	defer close(gate) // work queued later must not keep the memory
	if err := late.stream.Host(func() { <-gate }); err != nil {
		t.Fatal(err)
	}
	if _, err := late.device.gpu.Reclaim(); err != nil {
		t.Error(err)
	}
	if free := h.free()[0]; free < before+bytes {
		t.Errorf("%d bytes are free, want %d", free, before+bytes)
	}
	if err := wantOverdue(late.leave()); err != nil {
		t.Error(err)
	}
}
