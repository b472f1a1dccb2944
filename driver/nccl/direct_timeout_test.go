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

// In these tests, all ranks except the last launch direct calls. Their kernels wait for the last
// rank until they time out or rank 0 aborts the group.

// countFor maps each kind of direct kernel to a number of elements for which it is chosen.
var countFor = map[string]int64{"line": smallCount, "bulk": 1 << 21}

// At least one rank gets a TimeoutError that names the missing rank, and the others get ErrFault.
func TestTimeoutNamesAMissingRank(t *testing.T) {
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) {
			w := newTestGroup(t, ranksUpTo(t, 4), 2*time.Second)
			wantMissing := []int{len(w.opened) - 1}
			var timeoutCount atomic.Int32
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

var errAborted = errors.New("this rank aborts")

func TestAbortEndsKernels(t *testing.T) {
	const calls = 1
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) { abortWaitingCalls(t, count, calls) })
	}
}

// An abort also ends the kernels queued behind a waiting kernel.
func TestAbortEndsKernelsThatStartLater(t *testing.T) {
	const calls = 3
	abortWaitingCalls(t, countFor["line"], calls)
}

// abortWaitingCalls aborts the group on rank 0 while kernels wait for the last rank. Rank 0 must
// get errAborted, and the others ErrFault.
func abortWaitingCalls(t *testing.T, count int64, calls int) {
	t.Helper()
	w := newTestGroup(t, ranksUpTo(t, 4), time.Minute)
	var launching sync.WaitGroup
	launching.Add(len(w.opened) - 1)
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

// runWithoutLast runs f on all ranks except the last, in a group whose first call has succeeded.
// Afterwards, it checks that a new group works.
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
		err := m.closeGroup() // must succeed although the group has failed
		for _, s := range m.regions {
			err = errors.Join(err, s.segment.Unmap())
		}

		m.reuseAddresses()
		return err
	})
	w.regroup()
	w.withSum(count, func(m *testRank, p *repeatedSum) error { return m.launchAndCheck(w, p) })
}

func (m *testRank) launchAndCheck(w *testGroup, p *repeatedSum) error {
	if err := p.launch(m.group, m.stream, driver.PathDirect); err != nil {
		return err
	}

	return m.check(w, p, m.stream)
}
