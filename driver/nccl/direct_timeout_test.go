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

// countFor maps each kind of kernel to a count of elements for which calls use it.
var countFor = map[string]int64{"line": 1000, "bulk": 1 << 21}

// TestTimeoutNamesAMissingRank makes kernels wait for one rank until they time out. The GPUs must
// stay usable.
func TestTimeoutNamesAMissingRank(t *testing.T) {
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) {
			w := newTestGroup(t, ranksUpTo(t, 4), 2*time.Second)
			var namingRanks atomic.Int32
			w.runWithoutLast(count, func(m *testRank, p *repeatedSum) error {
				err := p.launch(m.group, m.stream, driver.PathDirect)
				if err == nil {
					err = m.stream.Synchronize(t.Context())
				}
				var timeoutErr *driver.TimeoutError
				switch {
				case errors.As(err, &timeoutErr) && slices.Equal(timeoutErr.Missing, []int{len(w.opened) - 1}):
					namingRanks.Add(1)
				case !errors.Is(err, driver.ErrFault): // a peer named the missing rank first
					return failuref("Synchronize = %v, want a TimeoutError that names the last rank", err)
				}
				return nil
			})
			if namingRanks.Load() == 0 {
				t.Error("no error names the missing rank")
			}
		})
	}
}

var errAborted = errors.New("this rank aborts")

// TestAbortEndsKernels aborts the group on one rank while kernels wait for the last rank.
func TestAbortEndsKernels(t *testing.T) {
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) { newTestGroup(t, ranksUpTo(t, 4), time.Minute).abort(count, 1) })
	}
}

// TestAbortEndsKernelsThatStartLater queues more kernels after the waiting ones.
func TestAbortEndsKernelsThatStartLater(t *testing.T) {
	newTestGroup(t, ranksUpTo(t, 4), time.Minute).abort(countFor["line"], 3)
}

func (w *testGroup) abort(count int64, calls int) {
	w.t.Helper()
	var launching sync.WaitGroup // ranks that make calls
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
		want := driver.ErrFault
		if m.rank == 0 {
			launching.Wait()
			m.group.Abort(errAborted)
			want = errAborted
		}
		if err := m.stream.Synchronize(w.t.Context()); !errors.Is(err, want) {
			return failuref("Synchronize = %v, want %v", err, want)
		}
		return nil
	})
}

// runWithoutLast makes a call that succeeds, and runs f on all ranks except the last. It then
// checks that a new group with new memory works.
func (w *testGroup) runWithoutLast(count int64, f func(m *testRank, p *repeatedSum) error) {
	w.t.Helper()
	w.regroup()
	w.withSum(count, func(m *testRank, p *repeatedSum) error {
		if err := p.launch(m.group, m.stream, driver.PathDirect); err != nil {
			return err
		}
		if err := m.check(w, p, m.stream); err != nil {
			return err
		}
		if m.rank == len(w.opened)-1 {
			return nil
		}
		return f(m, p)
	})
	w.must(func(m *testRank) error {
		err := m.closeGroup()
		for _, s := range m.regions {
			err = errors.Join(err, s.segment.Unmap())
		}
		m.regions, m.mapped = nil, 0
		return err
	})
	w.regroup()
	w.withSum(count, func(m *testRank, p *repeatedSum) error {
		if err := p.launch(m.group, m.stream, driver.PathDirect); err != nil {
			return err
		}
		return m.check(w, p, m.stream)
	})
}
