package nccl

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// Another library captures a call of a group in a CUDA graph, on a foreign stream (a stream of that
// library). It can replay the graph at any time until it destroys it. Therefore the group must keep
// the memory that the call uses, even after a failure or Close:
//
//	the segment         this rank's buffers
//	the peer's segment  the same on the other rank, which is mapped here through the window
//	exchange memory     through which the kernels of the direct path communicate between ranks
//
// When the group ends, its teardown frees the rest of its memory and closes stages.memoryFreed.
// Once the graph has been destroyed, it frees this memory, too, and closes stages.allFreed.

// awaitTeardownResult waits for the end of a communicator's teardown, and returns the teardown's
// error.
func awaitTeardownResult(c *communicator) error {
	select {
	case <-c.stages.allFreed:
		return c.teardown.result
	case <-time.After(time.Minute):
		return errors.New("the teardown is not done a minute after the last graph was destroyed")
	}
}

// TestFaultKeepsMemoryOfForeignGraphs aborts a group while a kernel of a foreign graph waits for
// the other rank, and then replays the graph. Replays must complete. Memory must be freed only
// after the graph has been destroyed.
func TestFaultKeepsMemoryOfForeignGraphs(t *testing.T) {
	for _, kind := range []string{"line", "bulk"} {
		t.Run(kind, func(t *testing.T) { replayAfterAFault(t, countFor[kind]) })
	}
}

// replayAfterAFault runs TestFaultKeepsMemoryOfForeignGraphs with a call of count elements.
func replayAfterAFault(t *testing.T, count int64) {
	w := newGroup(t, 2, time.Minute)
	graphs := make([]*foreignStream, 2) // by rank
	w.withSum(count, func(m *testRank, p *repeatedSum) (err error) {
		graphs[m.rank], err = m.captureForeign(p.call(driver.PathDirect))
		if err != nil || m.rank == 1 {
			return err
		}

		return graphs[0].replay() // waits for rank 1, which does not replay its graph
	})
	w.ranks[0].group.Abort(&driver.RankLostError{Ranks: []int{1}})
	w.must(func(m *testRank) error {
		c := m.group.(*communicator)
		hasFailed := func() bool {
			c.CheckPeers()
			return c.Cause() != nil
		}
		if err := gpu.Poll(t.Context(), hasFailed); err != nil {
			return err
		}

		<-c.stages.memoryFreed
		g := graphs[m.rank]
		if err := checkReplaysKeepExchange(c, g); err != nil {
			return err
		}

		if err := m.checkPeerStaysMapped(); err != nil {
			return err
		}

		return m.checkDestroyFrees(c, g)
	})
}

// isPeerMapped reports whether the other rank's segment is mapped through the window of region s.
func (m *testRank) isPeerMapped(s *region) bool {
	peer := 1 - m.rank
	return s.window.(*window).addresses[peer] != 0
}

// checkPeerStaysMapped deregisters the rank's windows. The peer's segments must stay mapped.
func (m *testRank) checkPeerStaysMapped() error {
	for _, s := range m.regions {
		if err := s.window.Deregister(); err != nil {
			return err
		}

		if !m.isPeerMapped(s) {
			return errors.New("the peer's segment was unmapped before the graph was destroyed")
		}
	}

	return nil
}

// checkDestroyFrees destroys the rank's graph g. The exchange memory must then be freed, and the
// peer's segment unmapped.
func (m *testRank) checkDestroyFrees(c *communicator, g *foreignStream) error {
	err := g.destroy()
	err = errors.Join(err, awaitTeardownResult(c))
	err = errors.Join(err, g.closeStream())
	if _, closedErr := c.direct.exchange.Transport(); !errors.Is(closedErr, driver.ErrClosed) {
		err = errors.Join(err, errors.New("the exchange memory was not freed"))
	}

	if m.isPeerMapped(m.regions[0]) {
		err = errors.Join(err, errors.New("the peer's segment was not unmapped"))
	}

	m.regions[0].window = nil // already deregistered
	return err
}

// checkReplaysKeepExchange replays foreign graph g three times after the group has failed. Each
// replay must end within 30 seconds. The exchange memory must stay at the same addresses.
func checkReplaysKeepExchange(c *communicator, g *foreignStream) error {
	before, err := c.direct.exchange.Transport()
	if err != nil {
		return failuref("the exchange memory was freed before the graph was destroyed: %v", err)
	}

	for range 3 {
		took, err := g.waitIdle() // first for the replay before the fault
		if err != nil || took > 30*time.Second {
			return failuref("a replay after the fault took %v: %v", took, err)
		}

		if err := g.replay(); err != nil {
			return err
		}
	}

	if _, err := g.waitIdle(); err != nil {
		return err
	}

	after, err := c.direct.exchange.Transport()
	if err != nil || after.Exchange[0] == 0 {
		return failuref("exchange memory before the graph is destroyed = %+v, %v; want it mapped",
			after, err)
	}

	isSame := slices.Equal(after.Exchange, before.Exchange) && after.Report == before.Report
	if !isSame {
		return failuref("exchange memory before the graph is destroyed = %+v, want %+v", after, before)
	}

	return nil
}

// TestMemoryOutlivesForeignGraphs closes everything that a foreign graph uses: the window, the
// segment, the group and the device. Replays must still complete. Memory must be freed only after
// the graph has been destroyed.
func TestMemoryOutlivesForeignGraphs(t *testing.T) {
	for _, path := range []driver.Path{driver.PathPlain, driver.PathDirect} {
		t.Run(fmt.Sprint(path), func(t *testing.T) {
			w := newGroup(t, 2, time.Minute)
			graphs := make([]*foreignStream, 2) // by rank
			w.withSum(countFor["bulk"], func(m *testRank, p *repeatedSum) (err error) {
				graphs[m.rank], err = m.captureForeign(p.call(path))
				return err
			})
			w.must(func(m *testRank) error { return m.closeWhileCaptured(graphs[m.rank]) })
		})
	}
}

// closeWhileCaptured closes a rank's objects while foreign graph g uses them, and then replays and
// destroys the graph. It returns the errors of all steps.
func (m *testRank) closeWhileCaptured(g *foreignStream) error {
	d := m.device
	c := m.group.(*communicator)
	s := m.regions[0]
	address := s.segment.Address()
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	add(s.window.Deregister())
	add(s.segment.Unmap())
	add(m.arena.Close())
	if !d.gpu.IsMapped(address) {
		add(errors.New("the segment was unmapped before the graph was destroyed"))
	}

	add(m.stream.Close())
	add(c.Close())
	add(d.gpu.Do(func() error { return d.gpu.CUDA.MemFreeHost(dl.AddressOf(&m.pinned[0])) }))
	add(g.stream.Close())
	// The foreign stream needs the GPU's context, which d.Close may release. Retain it, as the owner
	// of the stream would.
	_, retainErr := d.gpu.RetainPrimary()
	add(retainErr)
	begin := time.Now()
	add(d.Close())
	if took := time.Since(begin); took > 20*time.Second {
		add(fmt.Errorf("closing the device took %v, want at most 20s", took))
	}

	for range 2 {
		add(g.replay())
		_, waitErr := g.waitIdle()
		add(waitErr)
	}

	add(g.destroy())
	add(d.destroy(g.cudaStream))
	add(awaitTeardownResult(c))
	isContextReleased := func() (bool, error) { return !d.gpu.IsHeld(), nil } // by the device
	add(gpu.PollQueryFor(time.Minute, isContextReleased))
	if d.gpu.IsMapped(address) {
		add(errors.New("the segment is still mapped although the graph was destroyed"))
	}

	add(d.gpu.ReleasePrimary())
	m.forgetAll()
	return errors.Join(errs...)
}

// forgetAll makes the test's cleanup close nothing on this rank, because everything is closed.
func (m *testRank) forgetAll() {
	m.stream = nil
	m.group = nil
	m.arena = nil
	m.pinned = nil
	m.regions = nil
	m.device = nil
}

// TestInvalidatedCaptureDoesNotDelayTeardown closes a group after CUDA has invalidated a capture
// with one of its calls. Such a capture makes no graph, so the teardown must not wait for one.
func TestInvalidatedCaptureDoesNotDelayTeardown(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		plan, err := prepare(m.group, p.call(driver.PathDirect))
		if err != nil {
			return err
		}

		cudaStream, s, err := m.device.newForeignStream()
		if err != nil {
			return err
		}

		_, err = m.device.captureAsOwner(cudaStream, func() error {
			err := m.group.(driver.Recorder).Record(s, plan)
			if !m.group.(*communicator).recorder.graphHolds.HasActive() {
				err = errors.Join(err, errors.New("the recorder does not track the capture"))
			}

			// Querying the stream invalidates the capture.
			if _, queryErr := m.device.gpu.CUDA.StreamQuery(cudaStream); queryErr == nil {
				err = errors.Join(err, errors.New("the capture was not invalidated"))
			}

			return err
		})
		if !errors.Is(err, cuda.ErrCaptureInvalidated) {
			return failuref("capture = %v, want %v", err, cuda.ErrCaptureInvalidated)
		}

		err = s.Close()
		err = errors.Join(err, m.device.destroy(cudaStream))
		return errors.Join(err, m.closeGroup()) // times out if the teardown waits for a graph
	})
}
