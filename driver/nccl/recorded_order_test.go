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

// awaitKernelFault waits until a kernel's report has made the rank's group fail, and returns the
// cause.
func (m *testRank) awaitKernelFault(w *testGroup) error {
	limit := time.Second
	if usesSoftGPU(w.t) {
		limit = 20 * time.Second // the machine may be busy
	}

	select {
	case <-m.group.Failed():
		return m.group.Cause()
	case <-time.After(limit):
		return fmt.Errorf("rank %d: no kernel reported a fault within %v", m.rank, limit)
	}
}

// causeChecker checks the errors of the ranks of a failed group. At least one rank must return the
// original cause. A rank returns a PeerError instead if its kernel reports the cause more than
// control.Grace after another rank has failed.
type causeChecker struct{ causeCount atomic.Int32 }

// check returns the result of checkCause(err), or nil if err is a PeerError.
func (c *causeChecker) check(err error, checkCause func(error) error) error {
	if errors.As(err, new(*driver.PeerError)) {
		return nil
	}

	c.causeCount.Add(1)
	return checkCause(err)
}

func (c *causeChecker) requireCause(t *testing.T) {
	t.Helper()
	if c.causeCount.Load() == 0 {
		t.Error("no rank reported the cause")
	}
}

// TestEqualGraphsInOppositeOrderDiverge replays two graphs with identical calls. Rank 0 replays
// the second graph first. The group must fail rather than mix the data of the graphs.
func TestEqualGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			w := newAdditiveGroup(t, ranks, 20*time.Second)
			var causes causeChecker
			w.withSums(twoCounts(smallCount), func(m *testRank, sums []*repeatedSum) error {
				cause, err := m.replayInOppositeOrder(w, sums)
				if err != nil {
					return err
				}

				firstCapture := 1 // of the graph that this rank has replayed first
				if m.rank == 0 {
					firstCapture = 2
				}

				return causes.check(cause, checkReplayMismatch(firstCapture))
			})
			causes.requireCause(t)
		})
	}
}

// replayInOppositeOrder captures a graph with two calls for each of two sums, and replays the
// graphs, on rank 0 the second graph first. It returns the cause of the group's failure.
func (m *testRank) replayInOppositeOrder(
	w *testGroup, sums []*repeatedSum,
) (cause, err error) {
	foreign, err := m.newForeignStreams(2)
	if err != nil {
		return nil, err
	}

	for i, o := range foreign {
		p := sums[i]
		err := o.capture(func() error { return o.record(driver.PathDirect, p, p) })
		if err != nil {
			return nil, err
		}
	}

	if m.rank == 0 {
		slices.Reverse(foreign)
	}

	for _, o := range foreign {
		if err := o.replay(); err != nil {
			return nil, err
		}
	}

	cause = m.awaitKernelFault(w)
	_ = finish(foreign...) // returns the group's fault
	return cause, nil
}

// TestCallsDivergeWithFewResidentBlocks launches different calls on GPUs that run only one thread
// block at a time, as may happen when ranks share a GPU. The first block must detect the mismatch.
// If it waited for data instead, no other block would run.
func TestCallsDivergeWithFewResidentBlocks(t *testing.T) {
	if !inSoftGPUProcess(t, noFailures, "SOFTGPU_BLOCKS=1") {
		return
	}

	const count = 50_000 // elements, enough for several blocks
	w := newGroup(t, 2, 3*time.Second)
	var causes causeChecker
	w.withSum(count, func(m *testRank, p *repeatedSum) error {
		call := p.call(driver.PathDirect)
		call.Digest += uint64(m.rank)           // calls with different digests do not match
		m.group.(*communicator).SetCheck(false) // otherwise the hosts would compare the calls
		plan, err := prepare(m.group, call)
		if err != nil {
			return err
		}

		if err := m.group.Launch(m.stream, plan); err != nil {
			return err
		}

		return causes.check(m.stream.Synchronize(t.Context()), checkMismatch)
	})
	causes.requireCause(t)
}

func checkMismatch(err error) error {
	if !errors.As(err, new(*driver.MismatchError)) {
		return failuref("got %v, want a MismatchError", err)
	}

	return nil
}

// checkReplayMismatch returns a function that checks for a MismatchError about the first call of a
// capture. The error must identify the call by the number of its launch, because calls in graphs
// of another library have no ticket (number in the group).
func checkReplayMismatch(capture int) func(error) error {
	const byLaunch = true
	return func(err error) error { return checkCapturedMismatch(err, capture, byLaunch) }
}

// checkOwnMismatch is checkReplayMismatch for a graph of symmem. The error must identify the call
// by its ticket.
func checkOwnMismatch(capture int) func(error) error {
	const byLaunch = false
	return func(err error) error { return checkCapturedMismatch(err, capture, byLaunch) }
}

func checkCapturedMismatch(err error, capture int, byLaunch bool) error {
	position := fmt.Sprintf("call 1 of capture %d", capture)
	var mismatch *driver.MismatchError
	if !errors.As(err, &mismatch) {
		return failuref("got %v, want a MismatchError about %s", err, position)
	}

	if got := mismatch.Call.Recorded.Capture; got != uint64(capture) {
		return failuref("got %v with Capture = %d, want %d", err, got, capture)
	}

	if !strings.Contains(err.Error(), position) {
		return failuref("got %v, want an error that contains %q", err, position)
	}

	if mismatch.Launch != byLaunch {
		return failuref("got %v with Launch = %t, want %t", err, mismatch.Launch, byLaunch)
	}

	return nil
}

// TestOwnGraphsInOppositeOrderDiverge launches a different graph of symmem on each of two ranks,
// and expects a MismatchError. Direct calls are compared while they run, and plain calls before
// they run.
func TestOwnGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
		t.Run(path.String(), func(t *testing.T) {
			w := newAdditiveGroup(t, 2, 20*time.Second)
			var causes causeChecker
			w.withSums(twoCounts(smallCount), func(m *testRank, sums []*repeatedSum) error {
				const callsInGraph = 1
				for _, p := range sums { // capture appends the graph to m.graphs
					if _, err := m.capture(p, path, callsInGraph); err != nil {
						return err
					}
				}

				err := m.graphs[m.rank].Launch(m.stream)
				if err == nil {
					err = m.stream.Synchronize(t.Context())
				}

				return causes.check(err, checkOwnMismatch(m.rank+1))
			})
			causes.requireCause(t)
		})
	}
}

// TestReplayedCallDivergesFromAnEagerCall replays a captured call on rank 0, while rank 1 launches
// the same call without a graph. Both ranks must get a MismatchError.
func TestReplayedCallDivergesFromAnEagerCall(t *testing.T) {
	w := newAdditiveGroup(t, 2, 20*time.Second)
	var causes causeChecker
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		// The group's teardown waits until the graph is destroyed.
		defer func() { _ = finish(foreign...) }()
		o := foreign[0]
		err = o.capture(func() error { return o.record(driver.PathDirect, p) })
		if err != nil {
			return err
		}

		if m.rank == 0 {
			if err := o.replay(p); err != nil {
				return err
			}

			return causes.check(m.awaitKernelFault(w), checkReplayMismatch(1))
		}

		if err := p.launch(m.group, m.stream, driver.PathDirect); err != nil {
			return err
		}

		return causes.check(m.stream.Synchronize(t.Context()), checkMismatch)
	})
	causes.requireCause(t)
}

// TestCallInAnInvalidatedCaptureKeepsTheGroup checks that the group stays usable after Record in a
// capture that a query of the stream has invalidated. The capture is thread-local: in global mode,
// stream queries of the other rank in this process would fail as well.
func TestCallInAnInvalidatedCaptureKeepsTheGroup(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		o, gpu := foreign[0], m.device.gpu.CUDA
		err = m.device.gpu.Do(func() error {
			if err := gpu.BeginCapture(o.cudaStream, cuda.CaptureThreadLocal); err != nil {
				return err
			}

			_, _ = gpu.StreamQuery(o.cudaStream) // fails and invalidates the capture
			recordErr := o.record(driver.PathDirect, p)
			_, endErr := gpu.EndCapture(o.cudaStream)
			if !errors.Is(recordErr, cuda.ErrCaptureInvalidated) {
				return failuref("Record = %v, want ErrCaptureInvalidated", recordErr)
			}

			if endErr == nil {
				return failuref("EndCapture = nil, want an error, because the capture is invalid")
			}

			return nil
		})
		if cause := m.group.(*communicator).Cause(); cause != nil {
			err = errors.Join(err, failuref("the group failed: %v", cause))
		}

		err = errors.Join(err, finish(foreign...))
		return errors.Join(err, m.check(w, p)) // the sum must be unchanged
	})
}

// TestGraphInACaptureOfTheOwnerIsRefused launches a graph of symmem on an adopted stream while the
// stream's owner captures it. Launch must return ErrCapturing, because the captured graph might
// outlive objects that symmem's graph uses. Later launches on the stream must succeed.
func TestGraphInACaptureOfTheOwnerIsRefused(t *testing.T) {
	const callsInGraph = 1
	w := newAdditiveGroup(t, 2, 10*time.Second)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		own, err := m.capture(p, driver.PathDirect, callsInGraph)
		if err != nil {
			return err
		}

		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		o := foreign[0]
		err = o.capture(func() error {
			if err := own.Launch(o.stream); !errors.Is(err, driver.ErrCapturing) {
				return failuref("Launch = %v, want ErrCapturing", err)
			}

			return o.record(driver.PathDirect, p)
		})
		if err != nil {
			return err
		}

		err = o.replay(p)
		err = errors.Join(err, p.replay(m, own, o.stream, callsInGraph))
		err = errors.Join(err, finish(foreign...))
		return errors.Join(err, m.check(w, p))
	})
}
