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
// cause. It times out after a second on real GPUs, and later on the software GPU.
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

// causes counts the ranks whose error is the original cause of a failure. On a busy machine, a
// rank's kernel may report a fault more than control.Grace after another rank has failed. The
// error of such a rank says only that the other rank has failed.
type causes struct{ reported atomic.Int32 }

// check passes the error of a rank to the function check. If the error says only that another
// rank has failed, check returns nil instead.
func (r *causes) check(err error, check func(error) error) error {
	if errors.As(err, new(*driver.PeerError)) {
		return nil
	}
	r.reported.Add(1)
	return check(err)
}

// checkReported fails the test if no rank has reported the cause.
func (r *causes) checkReported(t *testing.T) {
	t.Helper()
	if r.reported.Load() == 0 {
		t.Error("no rank reported the cause")
	}
}

// TestEqualGraphsInOppositeOrderDiverge replays two graphs with identical calls. Rank 0 replays
// them in the opposite order. The group must fail rather than mix the data of the two graphs.
func TestEqualGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, ranks := range []int{2, 4} {
		t.Run(fmt.Sprintf("%d ranks", ranks), func(t *testing.T) {
			w := newAdditiveGroup(t, ranks, 20*time.Second)
			var reports causes
			w.withSums(twice(1000), func(m *testRank, sums []*repeatedSum) error {
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

// TestCallsDivergeWithFewResidentBlocks launches different calls on GPUs that run only one block
// at a time, as may happen when ranks share a GPU. If the first block waited for the data of a
// different call, it would never exit and no other block would run, so the first block must
// detect the mismatch.
func TestCallsDivergeWithFewResidentBlocks(t *testing.T) {
	if !inSoftGPUProcess(t, "", "SOFTGPU_BLOCKS=1") {
		return
	}
	w := newGroup(t, 2, 3*time.Second)
	var reports causes
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

// checkDivergence returns a function that checks that an error is a MismatchError about the first
// call of a capture. The error must identify the call by the number of its launch if launch is set,
// and by its ticket if it is not.
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
// Direct calls are compared while they run, and plain calls before they run.
func TestOwnGraphsInOppositeOrderDiverge(t *testing.T) {
	for _, path := range []driver.Path{driver.PathDirect, driver.PathPlain} {
		t.Run(path.String(), func(t *testing.T) {
			w := newAdditiveGroup(t, 2, 20*time.Second)
			var reports causes
			w.withSums(twice(1000), func(m *testRank, sums []*repeatedSum) error {
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

// TestReplayedCallDivergesFromAnEagerCall replays a captured call on one rank, while the other
// rank launches the same call eagerly. The calls must not match.
func TestReplayedCallDivergesFromAnEagerCall(t *testing.T) {
	w := newAdditiveGroup(t, 2, 20*time.Second)
	var reports causes
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		err = errors.Join(err, foreign[0].capture(func() error {
			return foreign[0].record(driver.PathDirect, p)
		}))
		// If the graph were not destroyed, the group's teardown would wait for it.
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

// TestCallInAnInvalidatedCaptureKeepsTheGroup records a call in a capture that CUDA has
// invalidated. The group must stay usable.
func TestCallInAnInvalidatedCaptureKeepsTheGroup(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}
		o, gpu := foreign[0], m.device.gpu.CUDA
		err = m.device.gpu.Do(func() error {
			if err := gpu.BeginCapture(o.cudaStream, cuda.CaptureGlobal); err != nil {
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
// capturing. The launch must be refused, because the owner's graph may outlive objects that
// symmem's graph uses. Both the capture and the group must stay valid.
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
