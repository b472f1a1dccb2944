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

// TestFaultKeepsMemoryOfForeignGraphs aborts a group while a kernel in another library's graph is
// waiting, and then replays the graph. Replays must complete. Memory must be freed only after the
// graph has been destroyed.
func TestFaultKeepsMemoryOfForeignGraphs(t *testing.T) {
	for _, kind := range []string{"line", "bulk"} {
		t.Run(kind, func(t *testing.T) { replayAfterAFault(t, countFor[kind]) })
	}
}

func replayAfterAFault(t *testing.T, count int64) {
	w := newGroup(t, 2, time.Minute)
	graphs := make([]*foreignStream, 2) // by rank
	w.withSum(count, func(m *testRank, p *repeatedSum) (err error) {
		graphs[m.rank], err = m.captureForeign(p.call(driver.PathDirect))
		if err != nil || m.rank == 1 {
			return err
		}
		return graphs[0].replay() // waits for rank 1
	})
	w.ranks[0].group.Abort(&driver.RankLostError{Ranks: []int{1}})
	w.must(func(m *testRank) error {
		c, g := m.group.(*communicator), graphs[m.rank]
		hasFailed := func() bool {
			c.CheckPeers()
			return c.Cause() != nil
		}
		if err := gpu.Poll(t.Context(), hasFailed); err != nil {
			return err
		}
		<-c.stages.memoryFreed // everything except what the graph uses
		transportBefore, err := c.direct.exchange.Transport()
		if err != nil {
			return failuref("the exchange memory was freed before the graph was destroyed: %v", err)
		}
		for range 3 {
			took, err := g.waitIdle()
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
		transport, err := c.direct.exchange.Transport()
		if err != nil || transport.Exchange[0] == 0 ||
			!slices.Equal(transport.Exchange, transportBefore.Exchange) ||
			transport.Report != transportBefore.Report {
			return failuref("exchange memory before the graph is destroyed = %+v, %v; want %+v",
				transport, err, transportBefore)
		}
		for _, s := range m.regions {
			if err := s.window.Deregister(); err != nil {
				return err
			}
			if got := s.window.(*window).addresses[1-m.rank]; got == 0 {
				return errors.New("the peer's segment was unmapped before the graph was destroyed")
			}
		}
		err = errors.Join(g.destroy(), awaitTeardownResult(c), g.closeStream())
		if _, closedErr := c.direct.exchange.Transport(); !errors.Is(closedErr, driver.ErrClosed) {
			err = errors.Join(err, errors.New("the exchange memory was not freed"))
		}
		if m.regions[0].window.(*window).addresses[1-m.rank] != 0 {
			err = errors.Join(err, errors.New("the peer's segment was not unmapped"))
		}
		m.regions[0].window = nil
		return err
	})
}

// TestMemoryOutlivesForeignGraphs closes all objects that a graph of another library
// uses. Replays must still complete, and the memory must be freed once the graph has been
// destroyed.
func TestMemoryOutlivesForeignGraphs(t *testing.T) {
	for _, path := range []driver.Path{driver.PathPlain, driver.PathDirect} {
		t.Run(fmt.Sprint(path), func(t *testing.T) {
			w := newGroup(t, 2, time.Minute)
			graphs := make([]*foreignStream, 2)
			w.withSum(countFor["bulk"], func(m *testRank, p *repeatedSum) (err error) {
				graphs[m.rank], err = m.captureForeign(p.call(path))
				return err
			})
			w.must(func(m *testRank) error { return m.closeWhileCaptured(graphs[m.rank]) })
		})
	}
}

// closeWhileCaptured closes a rank's objects while another library's graph uses them, and then
// replays and destroys the graph.
func (m *testRank) closeWhileCaptured(g *foreignStream) error {
	d, c, s := m.device, m.group.(*communicator), m.regions[0]
	address := s.segment.Address()
	errs := []error{s.window.Deregister(), s.segment.Unmap(), m.arena.Close()}
	if !d.gpu.IsMapped(address) {
		errs = append(errs, errors.New("the segment was unmapped before the graph was destroyed"))
	}
	freePinned := func() error { return d.gpu.CUDA.MemFreeHost(dl.AddressOf(&m.pinned[0])) }
	errs = append(errs, m.stream.Close(), c.Close(), d.gpu.Do(freePinned), g.stream.Close())
	// Retain the GPU's context as the stream's owner would, who still needs it.
	_, retainErr := d.gpu.RetainPrimary()
	begin := time.Now()
	errs = append(errs, retainErr, d.Close())
	if took := time.Since(begin); took > 20*time.Second {
		errs = append(errs, fmt.Errorf("closing the device took %v, want at most 20s", took))
	}
	for range 2 {
		errs = append(errs, g.replay())
		_, err := g.waitIdle()
		errs = append(errs, err)
	}
	errs = append(errs, g.destroy(), d.destroy(g.cudaStream), awaitTeardownResult(c))
	isContextReleased := func() (bool, error) { return !d.gpu.IsHeld(), nil }
	errs = append(errs, gpu.PollQueryFor(time.Minute, isContextReleased))
	if d.gpu.IsMapped(address) {
		errs = append(errs, errors.New("the segment is still mapped although the graph was destroyed"))
	}
	errs = append(errs, d.gpu.ReleasePrimary())
	m.stream, m.group, m.arena, m.pinned, m.regions, m.device = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// TestInvalidatedCaptureDoesNotDelayTeardown closes a group after a capture with one of its calls
// was invalidated. The teardown must not wait for a graph, because there is none.
func TestInvalidatedCaptureDoesNotDelayTeardown(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
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
			if !m.group.(*communicator).recorder.graphHolds.IsActive() {
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
		return errors.Join(s.Close(), m.device.destroy(cudaStream), m.closeGroup())
	})
}
