package nccl

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu/gputest"
	"symmem/internal/cuda"
)

// suspend returns the number of bytes that each rank has released.
func (w *testGroup) suspend() (released []int64) {
	w.t.Helper()
	released = make([]int64, len(w.ranks))
	w.must(func(m *testRank) error {
		return m.group.(*communicator).suspender.PrepareSuspend()
	})
	w.must(func(m *testRank) error {
		got, err := m.group.(*communicator).suspender.Suspend(w.t.Context())
		released[m.rank] = got.Released
		return err
	})
	return released
}

// TestGroupThatFailsInResumeFreesItsMemory aborts a group on one rank during Resume, after both
// ranks have allocated the group's memory.
func TestGroupThatFailsInResumeFreesItsMemory(t *testing.T) {
	w := newTestGroup(t, 2, time.Minute)
	w.regroup()
	needDirect(t, w.ranks[0].group)
	w.suspend()
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		if m.rank == 1 {
			defer c.Abort(nil)
			memory, err := allocateTargets(c.suspender.listTargets())
			defer memory.endExports()
			_, refusal, agreeErr := c.suspender.exchangeResumeMessages(t.Context(), memory, err)
			return errors.Join(refusal, agreeErr)
		}

		if err := c.suspender.Resume(t.Context()); err == nil {
			return failuref("Resume succeeded although the other rank has aborted the group")
		}

		return nil
	})
	w.must(func(m *testRank) error {
		<-m.group.(*communicator).stages.allFreed
		return m.group.(*communicator).teardown.result
	})
}

// TestLateZerosKeepExchangeMemoryMapped blocks the zeroing of a resumed group's memory, so that its
// allocation times out. The memory must stay mapped until the GPU has written the zeros.
func TestLateZerosKeepExchangeMemoryMapped(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	needDirect(t, w.ranks[0].group)
	w.suspend()
	m := w.ranks[0]
	g, exchange := m.device.gpu, &m.group.(*communicator).direct.exchange
	before := w.freeMemory()[0]
	gputest.DelayInternalWork(t, g, func() {
		if _, err := exchange.Allocate(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Allocate = %v, want %v", err, context.DeadlineExceeded)
		}
	})
	if free := w.freeMemory()[0]; free >= before {
		t.Error("the memory was unmapped before Reclaim")
	}

	if _, err := g.Reclaim(); err != nil {
		t.Error(err)
	}

	if free := w.freeMemory()[0]; free < before {
		t.Errorf("%d bytes are free after the zeros were written, want %d", free, before)
	}
}

// TestFailedResumeKeepsContents makes the copy of a segment's saved contents fail once. A later
// Resume must restore them.
func TestFailedResumeKeepsContents(t *testing.T) {
	if !inSoftGPUProcess(t, "cuMemcpyAsync:2:2") {
		return
	}

	w := newTestGroup(t, 1, time.Minute)
	w.must(func(m *testRank) error {
		arena, err := m.device.NewArena(2 << 20)
		if err != nil {
			return err
		}

		mapped, err := arena.Map(0, 2<<20)
		if err != nil {
			return err
		}

		segment, g := mapped.(driver.SuspendableSegment), m.device.gpu
		err = errors.Join(
			g.Do(func() error {
				return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
					return g.CUDA.MemsetD8Async(mapped.Address(), 7, 2<<20, stream)
				})
			}),
			segment.PrepareSuspend(true), segment.Suspend())
		if err != nil {
			return err
		}

		if err := segment.Resume(); err == nil {
			t.Error("Resume succeeded, want the injected failure")
		}

		if err := segment.Resume(); err != nil {
			return err
		}

		got, err := m.readDevice(w, mapped.Address(), 2<<20)
		if len(got) > 0 && (got[0] != 7 || got[len(got)-1] != 7) {
			t.Errorf("after the second Resume, got %d and %d, want 7", got[0], got[len(got)-1])
		}

		return errors.Join(err, mapped.Unmap(), arena.Close())
	})
}

// TestSuspendUnmappedWindows suspends and resumes windows that are registered with NCCL although
// one rank could not map the other rank's memory.
func TestSuspendUnmappedWindows(t *testing.T) {
	const bytes = 4096
	w := newTestGroup(t, 2, 20*time.Second)
	w.regroup()
	w.must(func(m *testRank) error {
		needDirect(t, m.group)
		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		s, err := m.mapRegion(bytes)
		if err == nil {
			err = m.register(w, s, windowName)
		}

		if err != nil {
			return err
		}

		window := s.window.(*window)
		window.isMappedEverywhere, window.isMappedHere = false, m.rank == 1
		if m.rank == 0 {
			return window.unmapPeers()
		}

		return nil
	})
	for range 2 {
		w.must(func(m *testRank) error {
			s := m.regions[0]
			if err := s.window.(*window).Suspend(); err != nil {
				return err
			}

			if s.window.(*window).handle != 0 {
				return failuref("NCCL's window is registered although the window is suspended")
			}

			return s.segment.(driver.SuspendableSegment).Suspend()
		})
		w.must(func(m *testRank) error {
			return m.regions[0].segment.(driver.SuspendableSegment).Resume()
		})
		w.must(func(m *testRank) error {
			window := m.regions[0].window.(*window)
			if err := window.Resume(t.Context()); err != nil {
				return err
			}

			_, err := window.PeerAddresses()
			return err
		})
	}
}

// TestErrorForMalformedResumeMessageNamesRank sends a malformed message from rank 1 while rank 0
// resumes the group. Rank 0 must also free its memory.
func TestErrorForMalformedResumeMessageNamesRank(t *testing.T) {
	w := newTestGroup(t, 2, time.Minute)
	for _, message := range []string{
		"", "{", "null", `{"exchange": 1}`, `{"exchange": ["AQ==", "AQ=="]}`, `{"exchange": [null]}`,
	} {
		w.regroup()
		needDirect(t, w.ranks[0].group)
		w.suspend()
		free := w.freeMemory()
		w.must(func(m *testRank) error {
			c := m.group.(*communicator)
			if m.rank == 1 {
				_, _ = c.plane.Exchange(t.Context(), driver.LaneControl, []byte(message))
				return nil // the exchange returns an error if rank 0 fails the group first
			}

			err := c.suspender.Resume(t.Context())
			if err == nil || !strings.Contains(err.Error(), "rank 1") || c.Cause() == nil {
				return failuref("Resume = %v with message %q, want a fault that names rank 1", err, message)
			}

			return nil
		})
		w.must(func(m *testRank) error {
			c := m.group.(*communicator)
			c.Abort(errAborted)
			<-c.stages.allFreed
			return c.teardown.result
		})
		for r, now := range w.freeMemory() {
			if now < free[r] {
				t.Errorf("rank %d keeps %d bytes after message %q, want 0", r, free[r]-now, message)
			}
		}
	}
}

// TestCloseDuringSuspensionFreesMemory closes groups at a random moment on each rank, while another
// goroutine suspends and resumes them.
func TestCloseDuringSuspensionFreesMemory(t *testing.T) {
	w := newTestGroup(t, 2, time.Minute)
	closeGroups := func(n int) {
		for range n {
			w.regroup()
			w.must((*testRank).closeDuringSuspension)
		}
	}
	closeGroups(1) // the first group also allocates memory that is kept
	files, free := countDescriptors(t), w.freeMemory()
	const groups = 20
	closeGroups(groups)
	if now := countDescriptors(t); now-files >= groups {
		t.Errorf("got %d open descriptors after %d groups, want about %d", now, groups, files)
	}

	for r, now := range w.freeMemory() {
		if leaked := free[r] - now; leaked >= groups<<20 {
			t.Errorf("rank %d: %d groups leaked %d bytes, want less than %d", r, groups, leaked,
				groups<<20)
		}
	}
}

// closeDuringSuspension closes the rank's group while another goroutine suspends and resumes it.
func (m *testRank) closeDuringSuspension() error {
	s := &m.group.(*communicator).suspender
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		for ctx := context.Background(); ; {
			if _, err := s.Suspend(ctx); err != nil || s.Resume(ctx) != nil {
				return
			}
		}
	}()
	for range rand.IntN(2000) {
		runtime.Gosched()
	}

	err := m.closeGroup()
	<-failed
	if errors.As(err, new(*driver.DeadlockError)) || errors.As(err, new(*driver.RankLostError)) {
		return nil // the other rank left the group first
	}

	return err
}

// TestLateGraphEndsAreAnError keeps CUDA's thread from telling NCCL which graphs have been
// destroyed. Their memory must not be unmapped meanwhile.
func TestLateGraphEndsAreAnError(t *testing.T) {
	if !usesSoftGPU(t) {
		t.Skipf("CUDA waits for its blocked thread without a limit: %v", driver.ErrUnsupported)
	}

	w := newTestGroup(t, 1, time.Second)
	w.must(func(m *testRank) error {
		g := m.device.gpu
		released := make(chan struct{})
		err := g.Do(func() error {
			return g.InternalStreams.Run(g, func(stream cuda.Stream) error {
				return callAfterEmptyGraph(g, stream, func() { <-released })
			})
		})
		if err == nil {
			err = awaitDestroyedGraphs(g)
		}

		close(released)
		if !errors.Is(err, driver.ErrBusy) {
			return failuref("got %v while CUDA's thread is blocked, want ErrBusy", err)
		}

		return awaitDestroyedGraphs(g)
	})
}
