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

// awaitKernelFault waits until a kernel's report has made the rank's group fail.
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

// causeCounter counts ranks that report the original cause of a failure. If a kernel reports it
// more than control.Grace after another rank has failed, the rank reports only that the other rank
// failed.
type causeCounter struct{ reported atomic.Int32 }

// check calls checkCause unless the error says only that another rank has failed.
func (r *causeCounter) check(err error, checkCause func(error) error) error {
	if errors.As(err, new(*driver.PeerError)) {
		return nil
	}
	r.reported.Add(1)
	return checkCause(err)
}

func (r *causeCounter) checkReported(t *testing.T) {
	t.Helper()
	if r.reported.Load() == 0 {
		t.Error("no rank reported the cause")
	}
}

// TestEqualGraphsInOppositeOrderDiverge replays two graphs with identical calls, on rank 0 in the
// opposite order. The group must fail rather than mix their data.
func TestEqualGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			w := newAdditiveGroup(t, ranks, 20*time.Second)
			var reports causeCounter
			w.withSums(twoCounts(1000), func(m *testRank, sums []*repeatedSum) error {
				foreign, err := m.newForeignStreams(2)
				for i, o := range foreign {
					err = errors.Join(err, o.capture(func() error {
						return o.record(driver.PathDirect, sums[i], sums[i])
					}))
				}
				first := 1
				if m.rank == 0 {
					first = 2
					slices.Reverse(foreign)
				}
				for _, o := range foreign {
					err = errors.Join(err, o.replay())
				}
				if err != nil {
					return err
				}
				cause := m.awaitKernelFault(w)
				_ = finish(foreign...) // returns the group's fault
				return reports.check(cause, checkDivergence(first, true))
			})
			reports.checkReported(t)
		})
	}
}

// TestCallsDivergeWithFewResidentBlocks launches different calls on GPUs that run only one block at
// a time, as may happen when ranks share a GPU. The first block must detect the mismatch: if it
// waited for data, no other block would run.
func TestCallsDivergeWithFewResidentBlocks(t *testing.T) {
	if !inSoftGPUProcess(t, "", "SOFTGPU_BLOCKS=1") {
		return
	}
	w := newGroup(t, 2, 3*time.Second)
	var reports causeCounter
	w.withSum(50_000, func(m *testRank, p *repeatedSum) error {
		call := p.call(driver.PathDirect)
		call.Digest += uint64(m.rank)
		m.group.(*communicator).SetCheck(false) // otherwise the hosts would compare the calls
		plan, err := prepare(m.group, call)
		if err = errors.Join(err, m.group.Launch(m.stream, plan)); err != nil {
			return err
		}
		return reports.check(m.stream.Synchronize(t.Context()), checkMismatch)
	})
	reports.checkReported(t)
}

func checkMismatch(err error) error {
	if !errors.As(err, new(*driver.MismatchError)) {
		return failuref("got %v, want a MismatchError", err)
	}
	return nil
}

// checkDivergence returns a function that checks for a MismatchError about the first call of a
// capture. The error must identify the call by the number of its launch if launch is set, and by
// its ticket otherwise.
func checkDivergence(capture int, launch bool) func(error) error {
	return func(err error) error {
		var mismatch *driver.MismatchError
		if !errors.As(err, &mismatch) || mismatch.Call.Recorded.Capture != uint64(capture) ||
			mismatch.Launch != launch ||
			!strings.Contains(err.Error(), fmt.Sprintf("call 1 of capture %d", capture)) {
			return failuref("got %v, want a MismatchError about call 1 of capture %d", err, capture)
		}
		return nil
	}
}

// TestOwnGraphsInOppositeOrderDiverge launches graphs of symmem in different orders on two ranks.
// Direct calls are compared while they run, and plain calls before.
func TestOwnGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
		t.Run(path.String(), func(t *testing.T) {
			w := newAdditiveGroup(t, 2, 20*time.Second)
			var reports causeCounter
			w.withSums(twoCounts(1000), func(m *testRank, sums []*repeatedSum) error {
				for _, p := range sums {
					if _, err := m.capture(p, path, 1); err != nil {
						return err
					}
				}
				err := m.graphs[m.rank].Launch(m.stream)
				if err == nil {
					err = m.stream.Synchronize(t.Context())
				}
				return reports.check(err, checkDivergence(m.rank+1, false))
			})
			reports.checkReported(t)
		})
	}
}

// TestReplayedCallDivergesFromAnEagerCall replays a captured call on one rank, while the other rank
// launches the same call.
func TestReplayedCallDivergesFromAnEagerCall(t *testing.T) {
	w := newAdditiveGroup(t, 2, 20*time.Second)
	var reports causeCounter
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		err = errors.Join(err, foreign[0].capture(func() error {
			return foreign[0].record(driver.PathDirect, p)
		}))
		// The group's teardown waits until the graph is destroyed.
		defer func() { _ = finish(foreign...) }()
		if m.rank == 0 {
			if err := errors.Join(err, foreign[0].replay(p)); err != nil {
				return err
			}
			return reports.check(m.awaitKernelFault(w), checkDivergence(1, true))
		}
		err = errors.Join(err, p.launch(m.group, m.stream, driver.PathDirect))
		if err != nil {
			return err
		}
		return reports.check(m.stream.Synchronize(t.Context()), checkMismatch)
	})
	reports.checkReported(t)
}

// TestCallInAnInvalidatedCaptureKeepsTheGroup checks that the group stays usable. A global
// capture would also make stream queries of the other rank, in this process, fail.
func TestCallInAnInvalidatedCaptureKeepsTheGroup(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}
		o, gpu := foreign[0], m.device.gpu.CUDA
		err = m.device.gpu.Do(func() error {
			if err := gpu.BeginCapture(o.cudaStream, cuda.CaptureThreadLocal); err != nil {
				return err
			}
			_, _ = gpu.StreamQuery(o.cudaStream)
			err := o.record(driver.PathDirect, p)
			_, endErr := gpu.EndCapture(o.cudaStream)
			if !errors.Is(err, cuda.ErrCaptureInvalidated) || endErr == nil {
				return failuref("Record = %v and EndCapture = %v, want ErrCaptureInvalidated and an error",
					err, endErr)
			}
			return nil
		})
		return errors.Join(err, m.group.(*communicator).Cause(), finish(foreign...), m.check(w, p))
	})
}

// TestGraphInACaptureOfTheOwnerIsRefused launches a graph of symmem on a stream that its owner is
// capturing. The owner's graph might outlive objects that symmem's graph uses.
func TestGraphInACaptureOfTheOwnerIsRefused(t *testing.T) {
	w := newAdditiveGroup(t, 2, 10*time.Second)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		g, err := m.capture(p, driver.PathDirect, 1)
		foreign, foreignErr := m.newForeignStreams(1)
		if err = errors.Join(err, foreignErr); err != nil {
			return err
		}
		err = foreign[0].capture(func() error {
			if err := g.Launch(foreign[0].stream); !errors.Is(err, driver.ErrCapturing) {
				return failuref("Launch = %v, want ErrCapturing", err)
			}
			return foreign[0].record(driver.PathDirect, p)
		})
		if err != nil {
			return err
		}
		return errors.Join(foreign[0].replay(p), p.replay(m, g, foreign[0].stream, 1), finish(foreign...),
			m.check(w, p))
	})
}
