package nccl

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
)

// In these tests, all ranks except the last launch calls on the direct path. Their kernels wait for
// the last rank until they time out, or until rank 0 aborts the group. The ranks then get an error:
//
//	timeout  a TimeoutError that names the last rank, or ErrFault if another rank timed out first
//	abort    errAborted on rank 0, and ErrFault on the others

// countFor maps each kind of direct kernel to a count of elements with which a repeatedSum uses it.
// Line kernels are for small calls, and bulk kernels for large ones.
var countFor = map[string]int64{"line": smallCount, "bulk": 1 << 21}

// TestTimeoutNamesAMissingRank lets the kernels time out. At least one rank must get a TimeoutError
// that names the last rank. The GPUs must stay usable.
func TestTimeoutNamesAMissingRank(t *testing.T) {
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) {
			w := newTestGroup(t, ranksUpTo(t, 4), 2*time.Second)
			wantMissing := []int{len(w.opened) - 1}
			var timeoutCount atomic.Int32 // number of ranks with the expected TimeoutError
			w.runWithoutLast(count, func(m *testRank, p *repeatedSum) error {
				err := p.launch(m.group, m.stream, driver.PathDirect)
				if err == nil {
					err = m.stream.Synchronize(t.Context())
				}

				var timeoutErr *driver.TimeoutError
				isTimeout := errors.As(err, &timeoutErr)
				if isTimeout && slices.Equal(timeoutErr.Missing, wantMissing) {
					timeoutCount.Add(1)
					return nil
				}

				if errors.Is(err, driver.ErrFault) {
					return nil // another rank has timed out first
				}

				return failuref("Synchronize = %v, want a TimeoutError about rank %d", err, wantMissing[0])
			})
			if timeoutCount.Load() == 0 {
				t.Errorf("no rank got a TimeoutError about rank %d", wantMissing[0])
			}
		})
	}
}

// errAborted is the cause with which rank 0 aborts the group.
var errAborted = errors.New("this rank aborts")

// TestAbortEndsKernels aborts the group while kernels wait for the last rank. They must end long
// before the timeout.
func TestAbortEndsKernels(t *testing.T) {
	const calls = 1
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) { abortWaitingCalls(t, count, calls) })
	}
}

// TestAbortEndsKernelsThatStartLater is TestAbortEndsKernels with more kernels queued after the
// waiting ones.
func TestAbortEndsKernelsThatStartLater(t *testing.T) {
	const calls = 3
	abortWaitingCalls(t, countFor["line"], calls)
}

// abortWaitingCalls launches calls on all ranks except the last, and then aborts the group on rank
// 0. Synchronize must return errAborted on rank 0, and ErrFault on the others.
func abortWaitingCalls(t *testing.T, count int64, calls int) {
	t.Helper()
	w := newTestGroup(t, ranksUpTo(t, 4), time.Minute)
	var launching sync.WaitGroup     // ranks that have not launched all calls
	launching.Add(len(w.opened) - 1) // all except the last one
	w.runWithoutLast(count, func(m *testRank, p *repeatedSum) error {
		var errs []error
		for range calls {
			errs = append(errs, p.launch(m.group, m.stream, driver.PathDirect))
		}

		launching.Done()
		if err := errors.Join(errs...); err != nil {
			return err
		}

		wantErr := driver.ErrFault
		if m.rank == 0 {
			launching.Wait()
			m.group.Abort(errAborted)
			wantErr = errAborted
		}

		if err := m.stream.Synchronize(t.Context()); !errors.Is(err, wantErr) {
			return failuref("Synchronize = %v, want %v", err, wantErr)
		}

		return nil
	})
}

// runWithoutLast connects a group, makes a call that succeeds, and runs f on all ranks except the
// last. The test fails if f returns an error. Then runWithoutLast closes the group and checks that
// a new group with new memory works.
func (w *testGroup) runWithoutLast(count int64, f func(m *testRank, p *repeatedSum) error) {
	w.t.Helper()
	w.regroup()
	w.withSum(count, func(m *testRank, p *repeatedSum) error {
		if err := m.launchAndCheck(w, p); err != nil {
			return err
		}

		if m.rank == len(w.opened)-1 {
			return nil
		}

		return f(m, p)
	})
	w.must(func(m *testRank) error {
		err := m.closeGroup() // returns no error although the group has failed
		for _, s := range m.regions {
			err = errors.Join(err, s.segment.Unmap())
		}

		m.reuseAddresses() // for the memory of the new group
		return err
	})
	w.regroup()
	w.withSum(count, func(m *testRank, p *repeatedSum) error { return m.launchAndCheck(w, p) })
}

// launchAndCheck launches a direct call and checks its result.
func (m *testRank) launchAndCheck(w *testGroup, p *repeatedSum) error {
	if err := p.launch(m.group, m.stream, driver.PathDirect); err != nil {
		return err
	}

	return m.check(w, p, m.stream)
}
