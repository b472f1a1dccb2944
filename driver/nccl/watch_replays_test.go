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

// faultDelay is how long a group may take to notice a fault that a kernel has reported. On a busy
// machine with the software GPU, a group may need most of that time.
const faultDelay = 2 * time.Second

// awaitFault waits until the rank's group has failed, and returns the cause. It returns nil if the
// timeout expires first.
func (m *testRank) awaitFault(timeout time.Duration) error {
	c := m.group.(*communicator)
	select {
	case <-c.Failed():
		return c.Cause()
	case <-time.After(timeout):
		return nil
	}
}

// countPoison checks that each element of a sum is either want or poison, and returns the number of
// poisoned elements.
func (m *testRank) countPoison(
	w *testGroup, p *repeatedSum, want uint32,
) (poisoned int, err error) {
	got, err := m.readDevice(w, p.segment.Address(), 4*p.count)
	for i := range p.count {
		switch v := binary.LittleEndian.Uint32(got[4*i:]); v {
		case ^uint32(0):
			poisoned++
		case want:
		default:
			return poisoned, errors.Join(err, fmt.Errorf("element %d = %d, want %d or poison", i, v, want))
		}
	}

	return poisoned, err
}

func (m *testRank) checkAllPoison(w *testGroup, p *repeatedSum) error {
	poisoned, err := m.countPoison(w, p, ^uint32(0))
	if err == nil && int64(poisoned) != p.count {
		err = fmt.Errorf("got %d poisoned elements, want all %d", poisoned, p.count)
	}

	return err
}

// TestFaultInAReplayIsReported replays a graph on only one rank. After the kernel has timed out,
// the group must fail on all ranks. Exchanges, launches, recordings, and waits for any stream of
// the graph's owner must return the fault. Later replays must complete immediately and poison
// their output.
func TestFaultInAReplayIsReported(t *testing.T) {
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) { replayOnOneRank(t, count) })
	}
}

func replayOnOneRank(t *testing.T, count int64) {
	ranks := ranksUpTo(t, 4)
	w := newGroup(t, ranks, time.Second)
	graphs, sums := make([]*foreignStream, ranks), make([]*repeatedSum, ranks)
	w.must(func(m *testRank) (err error) {
		if sums[m.rank], err = m.newRepeatedSum(w, windowName, count); err != nil {
			return err
		}

		if graphs[m.rank], err = m.captureForeign(sums[m.rank].call(driver.PathDirect)); err != nil {
			return err
		}

		if m.rank != 0 {
			return nil
		}

		return graphs[0].replayAndWait()
	})
	w.must(func(m *testRank) error {
		cause := m.awaitFault(faultDelay)
		var timeoutErr *driver.TimeoutError
		switch {
		case m.rank != 0 && !errors.Is(cause, driver.ErrFault):
			return failuref("cause = %v, want the fault of rank 0", cause)
		case m.rank == 0 && (!errors.As(cause, &timeoutErr) || len(timeoutErr.Missing) != ranks-1):
			return failuref("cause = %v, want a TimeoutError about all other ranks", cause)
		}

		return checkCallsFail(t, m, graphs[m.rank], sums[m.rank], cause)
	})
	w.must(func(m *testRank) error {
		g, p := graphs[m.rank], sums[m.rank]
		return errors.Join(g.checkReplayPoisons(w, m, p), g.destroy(), g.closeStream())
	})
}

// checkCallsFail checks that every call on a failed group returns its fault.
func checkCallsFail(
	t *testing.T, m *testRank, g *foreignStream, p *repeatedSum, cause error,
) error {
	plan, err := prepare(m.group, p.call(driver.PathDirect))
	if err != nil {
		return err
	}

	cudaStream, other, err := m.device.newForeignStream()
	if err != nil {
		return err
	}

	_, exchangeErr := m.group.Exchange(t.Context(), driver.LaneControl, nil)
	results := map[string]error{
		"Exchange":                      exchangeErr,
		"Synchronize":                   g.stream.Synchronize(t.Context()),
		"Synchronize of another stream": other.Synchronize(t.Context()),
		"Launch":                        m.group.Launch(g.stream, plan),
		"Record":                        m.group.(driver.Recorder).Record(g.stream, plan),
	}
	for name, got := range results {
		if !errors.Is(got, cause) {
			err = errors.Join(err, failuref("%s = %v, want %v", name, got, cause))
		}
	}

	return errors.Join(err, other.Close(), m.device.destroy(cudaStream))
}

// checkReplayPoisons replays a graph of a failed group, which must complete immediately and
// poison its output. The other ranks may also have correct sums, because they may have received
// rank 0's data before rank 0 failed. Bulk kernels access the peers' buffers and may add poison
// to an element, which may then have any value.
func (g *foreignStream) checkReplayPoisons(w *testGroup, m *testRank, p *repeatedSum) error {
	if err := g.replay(); err != nil {
		return err
	}

	took, err := g.waitIdle()
	if err != nil || took > 20*time.Second {
		return failuref("a replay after the fault took %v: %v", took, err)
	}

	if p.count == countFor["bulk"] {
		got, err := m.readDevice(w, p.segment.Address(), 4*p.count)
		if !bytes.Contains(got, []byte{0xff, 0xff, 0xff, 0xff}) {
			err = errors.Join(err, errors.New("no element is poisoned"))
		}

		return err
	}

	if m.rank == 0 {
		return m.checkAllPoison(w, p)
	}

	poisoned, err := m.countPoison(w, p, uint32(len(w.ranks)))
	if err == nil && poisoned == 0 {
		err = errors.New("no element is poisoned")
	}

	return err
}

// TestReplaysAfterATimeoutArePoisoned delays a replay on one rank until the other rank has timed
// out. The delayed replay may still produce the correct sum, but the output of all later replays
// must be poison on both ranks.
func TestReplaysAfterATimeoutArePoisoned(t *testing.T) {
	w := newGroup(t, 2, time.Second)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		g, err := m.captureForeign(p.call(driver.PathDirect))
		if err != nil {
			return err
		}

		for round := range 6 {
			if round == 1 && m.rank == 1 {
				<-w.ranks[0].group.Failed()
			}

			if err := g.replayAndWait(p); err != nil {
				return err
			}

			poisoned, err := m.countPoison(w, p, p.want)
			switch all := int64(poisoned) == p.count; {
			case err != nil:
				return fmt.Errorf("after replay %d: %w", round, err)
			case round == 0 && poisoned > 0, round == 1 && m.rank == 0 && poisoned == 0, round > 1 && !all:
				return fmt.Errorf("%d of %d elements are poisoned after replay %d", poisoned, p.count, round)
			}
		}

		cause, got := m.awaitFault(faultDelay), g.stream.Synchronize(t.Context())
		if cause == nil || !errors.Is(got, cause) {
			return fmt.Errorf("Synchronize = %[2]w, want the cause %[1]w", cause, got)
		}

		return errors.Join(g.destroy(), g.closeStream())
	})
}

// TestDivergenceInAReplay replays graphs of different calls on two ranks.
func TestDivergenceInAReplay(t *testing.T) {
	w := newGroup(t, 2, time.Minute)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		call := p.call(driver.PathDirect)
		if m.rank == 1 {
			call.Count--
		}

		call.Digest += uint64(m.rank) // the calls differ
		m.group.SetCheck(false)       // otherwise Record would compare the calls
		g, err := m.captureForeign(call)
		if err != nil {
			return err
		}

		if err := g.replay(); err != nil {
			return err
		}

		cause := m.awaitFault(20 * time.Second)
		var mismatch *driver.MismatchError
		if !errors.As(cause, &mismatch) && !errors.Is(cause, driver.ErrFault) {
			return failuref("cause = %v, want a MismatchError", cause)
		}

		if _, err := g.waitIdle(); err != nil {
			return err
		}

		p.count = call.Count
		if err := g.stream.Synchronize(t.Context()); !errors.Is(err, cause) {
			return failuref("Synchronize = %v, want %v", err, cause)
		}

		return errors.Join(m.checkAllPoison(w, p), g.destroy(), g.closeStream())
	})
}

// TestRankSendsNothingAfterAFault makes a call time out on a rank that has queued a second call.
// The input of the second call is the result of the first, which is missing, so the rank must not
// send it.
func TestRankSendsNothingAfterAFault(t *testing.T) {
	w := newGroup(t, 2, time.Second)
	var release func() error
	sums := make([]*repeatedSum, 2)
	w.must(func(m *testRank) (err error) {
		m.group.SetCheck(false)
		if sums[m.rank], err = m.newRepeatedSum(w, windowName, smallCount); err != nil {
			return err
		}

		if m.rank == 1 {
			if release, err = m.blockStream(m.stream.(*stream.Stream).CUDA); err != nil {
				return err
			}
		}

		for range 2 {
			if err := sums[m.rank].launch(m.group, m.stream, driver.PathDirect); err != nil {
				return err
			}
		}

		return nil
	})
	if w.ranks[0].awaitFault(time.Minute) == nil {
		t.Fatal("rank 0 did not fail")
	}

	if err := release(); err != nil {
		t.Fatal(err)
	}

	w.must(func(m *testRank) error {
		if err := m.stream.Synchronize(t.Context()); err == nil {
			return errors.New("Synchronize = nil, want the fault")
		}

		return m.checkAllPoison(w, sums[m.rank])
	})
}

// TestAbortEndsReplays aborts the group on one rank while replays on the other ranks wait for
// that rank. The watchers of the other ranks must stop the replays long before the kernels time
// out.
func TestAbortEndsReplays(t *testing.T) {
	w := newGroup(t, ranksUpTo(t, 4), time.Minute)
	var replaying sync.WaitGroup // the other ranks
	replaying.Add(len(w.opened) - 1)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		g, err := m.captureForeign(p.call(driver.PathDirect))
		if err != nil {
			return err
		}

		if m.rank == 0 {
			replaying.Wait()
			m.group.Abort(errAborted)
			_ = g.stream.Synchronize(t.Context()) // returns the fault
			return errors.Join(g.destroy(), g.closeStream())
		}

		err = g.replay()
		replaying.Done()
		if err != nil {
			return err
		}

		took, err := g.waitIdle()
		if err != nil || took > 20*time.Second {
			return failuref("the replay took %v: %v", took, err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := g.stream.Synchronize(ctx); !errors.Is(err, driver.ErrFault) {
			return failuref("Synchronize = %v, want the fault", err)
		}

		return errors.Join(m.checkAllPoison(w, p), g.destroy(), g.closeStream())
	})
}
