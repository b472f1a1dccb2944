package nccl

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
)

// fault waits until the group of a rank has failed, up to a second on a GPU, and returns the cause.
func (m *testRank) fault(w *testGroup) error {
	within := time.Second
	if soft(w.t) {
		within = 20 * time.Second // on a busy machine
	}
	select {
	case <-m.group.Failed():
		return m.group.Cause()
	case <-time.After(within):
		return fmt.Errorf("rank %d: no kernel has reported a fault", m.rank)
	}
}

// causes counts the ranks whose error names the cause. A rank whose kernel does not report a fault
// within control.Grace of the fault of another rank, as on a busy machine, only reports that the
// other rank has failed.
type causes struct{ reported atomic.Int32 }

// want checks the error of a rank, unless it only reports that another rank has failed.
func (r *causes) want(err error, check func(error) error) error {
	if errors.As(err, new(*driver.PeerError)) {
		return nil
	}
	r.reported.Add(1)
	return check(err)
}

// wantSome fails the test if no rank has reported the cause.
func (r *causes) wantSome(t *testing.T) {
	t.Helper()
	if r.reported.Load() == 0 {
		t.Error("no rank has reported the cause")
	}
}

// TestEqualGraphsInOppositeOrderDiverge replays two graphs with equal calls in different orders on
// the ranks, which must not mix their data.
func TestEqualGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			w := newSteps(t, ranks, 20*time.Second)
			var seen causes
			w.withPowers(two(1000), func(m *testRank, powers []*power) error {
				all, err := m.newOwned(2)
				for i, o := range all {
					err = errors.Join(err, o.capture(func() error {
						return o.record(driver.PathDirect, powers[i], powers[i])
					}))
				}
				first := 1
				if m.rank == 0 {
					first = 2
					slices.Reverse(all)
				}
				for _, o := range all {
					err = errors.Join(err, o.replay())
				}
				if err != nil {
					return err
				}
				found := m.fault(w)
				_ = finish(all...) // with the error of the group
				return seen.want(found, diverged(first, true))
			})
			seen.wantSome(t)
		})
	}
}

// TestCallsDivergeWithFewResidentBlocks launches different calls on GPUs that run one block at a
// time, as may happen if ranks share a GPU. Blocks that wait for data of another call do not end,
// so the first block must detect the difference.
func TestCallsDivergeWithFewResidentBlocks(t *testing.T) {
	if !apart(t, "", "SOFTGPU_BLOCKS=1") {
		return
	}
	w := newGroup(t, 2, 3*time.Second)
	var seen causes
	w.withPower(50_000, func(m *testRank, p *power) error {
		call := p.call(driver.PathDirect)
		call.Digest += uint64(m.rank)
		m.group.(*communicator).SetCheck(false) // or the hosts would compare the calls
		plan, err := prepare(m.group, call)
		if err = errors.Join(err, m.group.Launch(m.stream, plan)); err != nil {
			return err
		}
		return seen.want(m.stream.Synchronize(t.Context()), mismatched)
	})
	seen.wantSome(t)
}

// mismatched returns an error unless err is a MismatchError.
func mismatched(err error) error {
	if !errors.As(err, new(*driver.MismatchError)) {
		return fmt.Errorf("got %w, want a MismatchError", err)
	}
	return nil
}

// diverged returns a function that checks for a MismatchError about the first call of a capture,
// numbered by its launch or by its ticket.
func diverged(capture int, launch bool) func(error) error {
	return func(found error) error {
		var differs *driver.MismatchError
		if !errors.As(found, &differs) || differs.Call.Recorded.Capture != uint64(capture) ||
			differs.Launch != launch ||
			!strings.Contains(found.Error(), fmt.Sprintf("call 1 of capture %d", capture)) {
			return fmt.Errorf("got %w, want a MismatchError about call 1 of capture %d", found, capture)
		}
		return nil
	}
}

// TestOwnGraphsInOppositeOrderDiverge launches our graphs in different orders. Their calls are
// compared before or while they run.
func TestOwnGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
		t.Run(path.String(), func(t *testing.T) {
			w := newSteps(t, 2, 20*time.Second)
			var seen causes
			w.withPowers(two(1000), func(m *testRank, powers []*power) error {
				for _, p := range powers {
					if _, err := m.capture(p, path, 1); err != nil {
						return err
					}
				}
				err := m.graphs[m.rank].Launch(m.stream)
				if err == nil {
					err = m.stream.Synchronize(t.Context())
				}
				return seen.want(err, diverged(m.rank+1, false))
			})
			seen.wantSome(t)
		})
	}
}

// TestReplayedCallDivergesFromAnEagerCall replays a call on one rank that the other rank launches.
func TestReplayedCallDivergesFromAnEagerCall(t *testing.T) {
	w := newSteps(t, 2, 20*time.Second)
	var seen causes
	w.withPower(1000, func(m *testRank, p *power) error {
		all, err := m.newOwned(1)
		err = errors.Join(err, all[0].capture(func() error {
			return all[0].record(driver.PathDirect, p)
		}))
		defer func() { _ = finish(all...) }() // the teardown of the group waits for its graphs
		if m.rank == 0 {
			if err := errors.Join(err, all[0].replay(p)); err != nil {
				return err
			}
			return seen.want(m.fault(w), diverged(1, true))
		}
		err = errors.Join(err, p.raise(m.group, m.stream, driver.PathDirect))
		if err != nil {
			return err
		}
		return seen.want(m.stream.Synchronize(t.Context()), mismatched)
	})
	seen.wantSome(t)
}

// TestCallInAnInvalidatedCaptureKeepsTheGroup records a call after another call to CUDA has
// invalidated the capture.
func TestCallInAnInvalidatedCaptureKeepsTheGroup(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	w.withPower(1000, func(m *testRank, p *power) error {
		all, err := m.newOwned(1)
		if err != nil {
			return err
		}
		o, gpu := all[0], m.device.gpu.CUDA
		lost := m.device.gpu.Do(func() error {
			if err := gpu.BeginCapture(o.theirs, cuda.CaptureGlobal); err != nil {
				return err
			}
			_, _ = gpu.StreamQuery(o.theirs)
			err := o.record(driver.PathDirect, p)
			_, ended := gpu.EndCapture(o.theirs)
			if !errors.Is(err, cuda.ErrCaptureInvalidated) || ended == nil {
				return fmt.Errorf("the call returned %w, the end of the capture %w", err, ended)
			}
			return nil
		})
		return errors.Join(lost, m.group.(*communicator).Cause(), finish(all...), m.check(w, p))
	})
}

// TestGraphInACaptureOfTheOwnerIsRefused launches our graph on a stream that its owner captures.
// The objects of our graph would not live as long as the owner's graph. The capture and the group
// must stay valid.
func TestGraphInACaptureOfTheOwnerIsRefused(t *testing.T) {
	w := newSteps(t, 2, 10*time.Second)
	w.withPower(1000, func(m *testRank, p *power) error {
		g, err := m.capture(p, driver.PathDirect, 1)
		all, failed := m.newOwned(1)
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		err = all[0].capture(func() error {
			if err := g.Launch(all[0].stream); !errors.Is(err, driver.ErrCapturing) {
				return fmt.Errorf("got %w, want ErrCapturing", err)
			}
			return all[0].record(driver.PathDirect, p)
		})
		if err != nil {
			return err
		}
		return errors.Join(all[0].replay(p), p.replay(m, g, all[0].stream, 1), finish(all...),
			m.check(w, p))
	})
}
