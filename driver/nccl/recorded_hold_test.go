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
		if err := checkReplaysKeepExchange(c, g); err != nil {
			return err
		}

		peer := 1 - m.rank
		for _, s := range m.regions {
			if err := s.window.Deregister(); err != nil {
				return err
			}

			if s.window.(*window).addresses[peer] == 0 {
				return errors.New("the peer's segment was unmapped before the graph was destroyed")
			}
		}

		err := g.destroy()
		err = errors.Join(err, awaitTeardownResult(c))
		err = errors.Join(err, g.closeStream())
		if _, closedErr := c.direct.exchange.Transport(); !errors.Is(closedErr, driver.ErrClosed) {
			err = errors.Join(err, errors.New("the exchange memory was not freed"))
		}

		if m.regions[0].window.(*window).addresses[peer] != 0 {
			err = errors.Join(err, errors.New("the peer's segment was not unmapped"))
		}

		m.regions[0].window = nil // already deregistered
		return err
	})
}

// checkReplaysKeepExchange replays the graph of another library three times after its group has
// failed. Replays must end soon. The exchange memory, through which direct kernels of several
// ranks communicate, must stay at the same addresses.
func checkReplaysKeepExchange(c *communicator, g *foreignStream) error {
	before, err := c.direct.exchange.Transport()
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

	after, err := c.direct.exchange.Transport()
	if err != nil || after.Exchange[0] == 0 {
		return failuref("exchange memory before the graph is destroyed = %+v, %v; want it mapped",
			after, err)
	}

	if !slices.Equal(after.Exchange, before.Exchange) || after.Report != before.Report {
		return failuref("exchange memory before the graph is destroyed = %+v, want %+v", after, before)
	}

	return nil
}

// TestMemoryOutlivesForeignGraphs closes all objects that a graph of another library uses. Replays
// must still complete, and the memory must be freed once the graph has been destroyed.
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

// closeWhileCaptured closes a rank's objects while another library's graph uses them, and then
// replays and destroys the graph. It returns the errors of all steps.
func (m *testRank) closeWhileCaptured(g *foreignStream) error {
	d, c, s := m.device, m.group.(*communicator), m.regions[0]
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
	// Retain the GPU's context as the stream's owner would, who still needs it.
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
	isContextReleased := func() (bool, error) { return !d.gpu.IsHeld(), nil }
	add(gpu.PollQueryFor(time.Minute, isContextReleased))
	if d.gpu.IsMapped(address) {
		add(errors.New("the segment is still mapped although the graph was destroyed"))
	}

	add(d.gpu.ReleasePrimary())
	// So that the test's cleanup does not close them again.
	m.stream, m.group, m.arena, m.pinned, m.regions, m.device = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// TestInvalidatedCaptureDoesNotDelayTeardown closes a group after a capture with one of its calls
// was invalidated. The teardown must not wait for a graph, because there is none.
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

		err = s.Close()
		err = errors.Join(err, m.device.destroy(cudaStream))
		return errors.Join(err, m.closeGroup()) // times out if the teardown waits for a graph
	})
}
