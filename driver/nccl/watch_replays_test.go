package nccl

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// faultDelay bounds the time until a group notices the fault that a kernel has reported, on a busy
// machine with the software GPU.
const faultDelay = 2 * time.Second

// awaitFault waits until a rank's group has failed, and returns the fault.
func (m *testRank) awaitFault(within time.Duration) error {
	c := m.group.(*communicator)
	select {
	case <-c.Failed():
		return c.Cause()
	case <-time.After(within):
		return nil
	}
}

// poisonIn checks that each number of a power is either want or poison, and counts the poison.
func (m *testRank) poisonIn(w *testGroup, p *power, want uint32) (poisoned int, err error) {
	got, err := m.copied(w, p.segment.Address(), 4*p.count)
	for i := range p.count {
		switch v := binary.LittleEndian.Uint32(got[4*i:]); v {
		case ^uint32(0):
			poisoned++
		case want:
		default:
			return poisoned, errors.Join(err, fmt.Errorf("number %d is %d, want %d or poison", i, v, want))
		}
	}
	return poisoned, err
}

// allPoison checks that all numbers of a power are poison.
func (m *testRank) allPoison(w *testGroup, p *power) error {
	poisoned, err := m.poisonIn(w, p, ^uint32(0))
	if err == nil && int64(poisoned) != p.count {
		err = fmt.Errorf("%d of %d numbers are poisoned", poisoned, p.count)
	}
	return err
}

// TestFaultInAReplayIsReported replays a graph on one rank only. Nothing else is launched there,
// but the groups of all ranks must fail after the kernel has timed out, and every call must return
// the fault: exchanges, launches, recordings, and waits for any stream of the owner. Later replays
// end at once and poison their output.
func TestFaultInAReplayIsReported(t *testing.T) {
	for kind, count := range sizes {
		t.Run(kind, func(t *testing.T) { replayAlone(t, count) })
	}
}

func replayAlone(t *testing.T, count int64) {
	ranks := atMost(t, 4)
	w := newGroup(t, ranks, time.Second)
	graphs, powers := make([]*owned, ranks), make([]*power, ranks)
	w.must(func(m *testRank) (err error) {
		if powers[m.rank], err = m.newPower(w, 1, count); err != nil {
			return err
		}
		if graphs[m.rank], err = m.capturedBy(powers[m.rank].call(driver.PathDirect)); err != nil {
			return err
		}
		if m.rank != 0 {
			return nil
		}
		return graphs[0].replayed()
	})
	w.must(func(m *testRank) error {
		cause := m.awaitFault(faultDelay)
		var late *driver.TimeoutError
		switch {
		case m.rank != 0 && !errors.Is(cause, driver.ErrFault):
			return fmt.Errorf("the cause is %w, want the fault of rank 0", cause)
		case m.rank == 0 && (!errors.As(cause, &late) || len(late.Missing) != ranks-1):
			return fmt.Errorf("the cause is %w, want a TimeoutError about all others", cause)
		}
		return failsEverywhere(t, m, graphs[m.rank], powers[m.rank], cause)
	})
	w.must(func(m *testRank) error {
		g, p := graphs[m.rank], powers[m.rank]
		return errors.Join(g.launchPoisoned(w, m, p), g.destroy(), g.leave())
	})
}

// failsEverywhere checks that every call on a failed group returns its fault.
func failsEverywhere(t *testing.T, m *testRank, g *owned, p *power, cause error) error {
	plan, err := prepare(m.group, p.call(driver.PathDirect))
	if err != nil {
		return err
	}
	theirs, elsewhere, err := m.device.foreign()
	if err != nil {
		return err
	}
	_, exchanged := m.group.Exchange(t.Context(), driver.LaneControl, nil)
	results := map[string]error{
		"Exchange":                      exchanged,
		"Synchronize":                   g.stream.Synchronize(t.Context()),
		"Synchronize of another stream": elsewhere.Synchronize(t.Context()),
		"Launch":                        m.group.Launch(g.stream, plan),
		"Record":                        m.group.(driver.Recorder).Record(g.stream, plan),
	}
	for name, got := range results {
		if !errors.Is(got, cause) {
			err = errors.Join(err, fmt.Errorf("%s returned %w, want %w", name, got, cause))
		}
	}
	return errors.Join(err, elsewhere.Close(), m.device.destroy(theirs))
}

// launchPoisoned replays a graph of a failed group, which must end at once. The other ranks may
// have received data that rank 0 has sent before it failed, so they may have correct sums as well
// as poison. If kernels access the peers' buffers in place, they may add up poison, and integers
// may have any value.
func (g *owned) launchPoisoned(w *testGroup, m *testRank, p *power) error {
	if err := g.replay(); err != nil {
		return err
	}
	took, err := g.ends()
	if err != nil || took > 20*time.Second {
		return fmt.Errorf("a replay after the fault took %v: %w", took, err)
	}
	if p.count == sizes["buffers"] {
		got, err := m.copied(w, p.segment.Address(), 4*p.count)
		if !bytes.Contains(got, []byte{0xff, 0xff, 0xff, 0xff}) {
			err = errors.Join(err, errors.New("no number is poisoned"))
		}
		return err
	}
	if m.rank == 0 {
		return m.allPoison(w, p)
	}
	poisoned, err := m.poisonIn(w, p, uint32(len(w.ranks)))
	if err == nil && poisoned == 0 {
		err = errors.New("no number is poisoned")
	}
	return err
}

// TestRankThatPausesBetweenReplays delays a replay on one rank until the other has timed out. That
// replay may give the correct sum, and all later replays must give poison, on both ranks.
func TestRankThatPausesBetweenReplays(t *testing.T) {
	w := newGroup(t, 2, time.Second)
	w.withPower(1000, func(m *testRank, p *power) error {
		g, err := m.capturedBy(p.call(driver.PathDirect))
		if err != nil {
			return err
		}
		for round := range 6 {
			if round == 1 && m.rank == 1 {
				<-w.ranks[0].group.Failed()
			}
			if err := g.replayed(p); err != nil {
				return err
			}
			poisoned, err := m.poisonIn(w, p, p.want)
			switch whole := int64(poisoned) == p.count; {
			case err != nil:
				return fmt.Errorf("after replay %d: %w", round, err)
			case round == 0 && poisoned > 0, round == 1 && m.rank == 0 && poisoned == 0, round > 1 && !whole:
				return fmt.Errorf("%d of %d numbers are poisoned after replay %d", poisoned, p.count, round)
			}
		}
		cause, got := m.awaitFault(faultDelay), g.stream.Synchronize(t.Context())
		if cause == nil || !errors.Is(got, cause) {
			return fmt.Errorf("the cause is %w, and the stream returned %w", cause, got)
		}
		return errors.Join(g.destroy(), g.leave())
	})
}

// TestDivergenceInAReplay replays graphs of different calls on two ranks.
func TestDivergenceInAReplay(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.withPower(1000, func(m *testRank, p *power) error {
		call := p.call(driver.PathDirect)
		if m.rank == 1 {
			call.Count--
		}
		call.Digest += uint64(m.rank) // since the calls differ
		m.group.SetCheck(false)       // or Record would compare the calls
		g, err := m.capturedBy(call)
		if err != nil {
			return err
		}
		if err := g.replay(); err != nil {
			return err
		}
		cause := m.awaitFault(20 * time.Second)
		var differ *driver.MismatchError
		if !errors.As(cause, &differ) && !errors.Is(cause, driver.ErrFault) {
			return fmt.Errorf("the cause is %w, want a MismatchError", cause)
		}
		if _, err := g.ends(); err != nil {
			return err
		}
		p.count = call.Count
		if err := g.stream.Synchronize(t.Context()); !errors.Is(err, cause) {
			return fmt.Errorf("the stream returned %w, want %w", err, cause)
		}
		return errors.Join(m.allPoison(w, p), g.destroy(), g.leave())
	})
}

// TestRankSendsNothingAfterAFault lets a call time out on a rank that has another call queued after
// it. The rank must not send its input of the second call, which is the missing result of the
// first.
func TestRankSendsNothingAfterAFault(t *testing.T) {
	w := newGroup(t, 2, time.Second)
	var release func() error
	powers := make([]*power, 2)
	w.must(func(m *testRank) (err error) {
		m.group.SetCheck(false)
		if powers[m.rank], err = m.newPower(w, 1, 1000); err != nil {
			return err
		}
		if m.rank == 1 {
			if release, err = m.occupy(m.stream.(*stream.Stream).CUDA); err != nil {
				return err
			}
		}
		for range 2 {
			if err := powers[m.rank].raise(m.group, m.stream, driver.PathDirect); err != nil {
				return err
			}
		}
		return nil
	})
	if w.ranks[0].awaitFault(time.Minute) == nil {
		t.Fatal("rank 0 has not failed")
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	w.must(func(m *testRank) error {
		if err := m.stream.Synchronize(t.Context()); err == nil {
			return errors.New("the stream returned no error")
		}
		return m.allPoison(w, powers[m.rank])
	})
}

// TestAbortEndsReplays aborts the group of a rank while others wait for it in a replay. Their
// watchers must end the replays long before the kernels' timeout.
func TestAbortEndsReplays(t *testing.T) {
	w := newGroup(t, atMost(t, 4), time.Minute)
	var replaying sync.WaitGroup // the other ranks
	replaying.Add(len(w.opened) - 1)
	w.withPower(1000, func(m *testRank, p *power) error {
		g, err := m.capturedBy(p.call(driver.PathDirect))
		if err != nil {
			return err
		}
		if m.rank == 0 {
			replaying.Wait()
			m.group.Abort(errAborted)
			_ = g.stream.Synchronize(t.Context()) // returns this rank's fault
			return errors.Join(g.destroy(), g.leave())
		}
		err = g.replay()
		replaying.Done()
		if err != nil {
			return err
		}
		took, err := g.ends()
		if err != nil || took > 20*time.Second {
			return fmt.Errorf("the replay took %v: %w", took, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := g.stream.Synchronize(ctx); !errors.Is(err, driver.ErrFault) {
			return fmt.Errorf("the stream returned %w, want the fault", err)
		}
		return errors.Join(m.allPoison(w, p), g.destroy(), g.leave())
	})
}
