package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// torn waits for the end of a communicator's teardown.
func torn(c *communicator) error {
	select {
	case <-c.stages.tornDown:
		return c.teardown.err
	case <-time.After(time.Minute):
		return errors.New("the group is not torn down a minute after its last graph")
	}
}

// TestFaultKeepsMemoryOfForeignGraphs fails a group while a kernel in a graph of another library
// waits, and then replays the graph: each replay must end. No memory is unmapped, and the report is
// not reused, before the graph is destroyed; then everything is freed.
func TestFaultKeepsMemoryOfForeignGraphs(t *testing.T) {
	for _, count := range []int64{1000, sizes["buffers"]} {
		t.Run(fmt.Sprint(count), func(t *testing.T) { replayAfterAFault(t, count) })
	}
}

func replayAfterAFault(t *testing.T, count int64) {
	w := newGroup(t, 2, time.Minute)
	graphs := make([]*owned, 2)
	w.withPower(count, func(m *testRank, p *power) error {
		var err error
		if graphs[m.rank], err = m.capturedBy(p.call(driver.PathDirect)); err != nil || m.rank == 1 {
			return err
		}
		return graphs[0].replay()
	})
	lost := &driver.RankLostError{Ranks: []int{1}}
	w.ranks[0].group.Abort(lost)
	w.must(func(m *testRank) error {
		c, g := m.group.(*communicator), graphs[m.rank]
		err := gpu.Poll(t.Context(), func() bool { c.CheckPeers(); return c.Cause() != nil })
		if err != nil {
			return err
		}
		<-c.stages.released
		before, open := c.direct.exchange.Places()
		for range 3 {
			took, err := g.ends()
			if err != nil || took > 30*time.Second {
				return fmt.Errorf("a replay took %v after the fault: %w", took, err)
			}
			if err := g.replay(); err != nil {
				return err
			}
		}
		if _, err := g.ends(); err != nil {
			return err
		}
		now, err := c.direct.exchange.Places()
		if now.Exchange[0] == 0 || open != nil || err != nil || now != before {
			return errors.New("memory of the group was freed before its graph")
		}
		for _, s := range m.owned {
			if err := s.window.Deregister(); err != nil {
				return err
			}
			if got := s.window.(*window).at[1-m.rank]; got == 0 {
				return errors.New("the peer's segment was unmapped before the graph was destroyed")
			}
		}
		err = errors.Join(g.destroy(), torn(c), g.leave())
		_, open = c.direct.exchange.Places()
		if !errors.Is(open, driver.ErrClosed) || m.owned[0].window.(*window).at[1-m.rank] != 0 {
			err = errors.Join(err, errors.New("memory of the group was not freed after its last graph"))
		}
		m.owned[0].window = nil
		return err
	})
}

// TestMemoryOutlivesForeignGraphs frees a window, a segment and its addresses, and closes the group
// and the device, while a graph has a call that uses them. Replays must still end, and the memory
// is freed when the graph is gone.
func TestMemoryOutlivesForeignGraphs(t *testing.T) {
	for _, path := range []driver.Path{driver.PathPlain, driver.PathDirect} {
		t.Run(fmt.Sprint(path), func(t *testing.T) {
			w := newGroup(t, 2, time.Minute)
			graphs := make([]*owned, 2)
			w.withPower(sizes["buffers"], func(m *testRank, p *power) (err error) {
				graphs[m.rank], err = m.capturedBy(p.call(path))
				return err
			})
			w.must(func(m *testRank) error { return m.closeUnder(graphs[m.rank]) })
		})
	}
}

// closeUnder closes everything of a rank while a graph of another library uses it.
func (m *testRank) closeUnder(g *owned) error {
	d, c, s := m.device, m.group.(*communicator), m.owned[0]
	at := s.segment.Address()
	errs := []error{s.window.Deregister(), s.segment.Unmap(), m.arena.Close()}
	if !d.gpu.IsMapped(at) {
		errs = append(errs, errors.New("a segment was unmapped before the graph was destroyed"))
	}
	errs = append(errs, m.stream.Close(), c.Close(), d.gpu.Do(func() error {
		return d.gpu.CUDA.MemFreeHost(dl.AddressOf(&m.pinned[0]))
	}), g.stream.Close())
	// The owner of the stream still uses the GPU's context.
	_, err := d.gpu.RetainPrimary()
	begin := time.Now()
	errs = append(errs, err, d.Close())
	if took := time.Since(begin); took > 20*time.Second {
		errs = append(errs, fmt.Errorf("closing the device took %v", took))
	}
	for range 2 {
		errs = append(errs, g.replay())
		_, err := g.ends()
		errs = append(errs, err)
	}
	errs = append(errs, g.destroy(), d.destroy(g.theirs), torn(c))
	errs = append(errs, gpu.Within(time.Minute, func() (bool, error) {
		return !d.gpu.Held(), nil
	}))
	if d.gpu.IsMapped(at) {
		errs = append(errs, errors.New("a segment is still mapped after the last graph"))
	}
	errs = append(errs, d.gpu.ReleasePrimary())
	m.stream, m.group, m.arena, m.pinned, m.owned, m.device = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// TestInvalidatedCaptureHoldsNothing invalidates a capture with a call, and closes the group.
func TestInvalidatedCaptureHoldsNothing(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.withPower(1000, func(m *testRank, p *power) error {
		plan, err := prepare(m.group, p.call(driver.PathDirect))
		if err != nil {
			return err
		}
		theirs, s, err := m.device.foreign()
		if err != nil {
			return err
		}
		_, err = m.device.recordBy(theirs, func() error {
			err := m.group.(driver.Recorder).Record(s, plan)
			if !m.group.(*communicator).recorder.captures.Any() {
				err = errors.Join(err, errors.New("the capture holds nothing"))
			}
			// CUDA invalidates the capture of a stream that is queried.
			if _, lost := m.device.gpu.CUDA.StreamQuery(theirs); lost == nil {
				err = errors.Join(err, errors.New("the capture was not invalidated"))
			}
			return err
		})
		if !errors.Is(err, cuda.ErrCaptureInvalidated) {
			return fmt.Errorf("got %w, want %w", err, cuda.ErrCaptureInvalidated)
		}
		return errors.Join(s.Close(), m.device.destroy(theirs), m.leave())
	})
}
