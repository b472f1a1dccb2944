package nccl

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
)

// sizes has the counts of a call with a line kernel and of one with a bulk kernel. raise checks the
// kernel.
var sizes = map[string]int64{"lines": 1000, "buffers": 1 << 21}

// TestTimeoutNamesAMissingRank lets kernels wait for one rank until the deadline. The group fails,
// but its memory and the GPUs stay usable.
func TestTimeoutNamesAMissingRank(t *testing.T) {
	for kind, count := range sizes {
		t.Run(kind, func(t *testing.T) {
			w := newTestGroup(t, atMost(t, 4), 2*time.Second)
			var named atomic.Int32
			w.withoutLast(count, func(m *testRank, p *power) error {
				err := p.raise(m.group, m.stream, driver.PathDirect)
				if err == nil {
					err = m.stream.Synchronize(t.Context())
				}
				var late *driver.TimeoutError
				switch {
				case errors.As(err, &late) && slices.Equal(late.Missing, []int{len(w.opened) - 1}):
					named.Add(1)
				case !errors.Is(err, driver.ErrFault): // a faster peer names the rank
					return fmt.Errorf("got %w, want a TimeoutError that names the last rank", err)
				}
				return nil
			})
			if named.Load() == 0 {
				t.Error("no error names the missing rank")
			}
		})
	}
}

var errAborted = errors.New("this rank aborts")

// TestAbortEndsKernels aborts on one rank while the kernels of all ranks except one wait for the
// exception.
func TestAbortEndsKernels(t *testing.T) {
	for kind, count := range sizes {
		t.Run(kind, func(t *testing.T) { newTestGroup(t, atMost(t, 4), time.Minute).abort(count, 1) })
	}
}

// TestAbortEndsKernelsThatStartLater queues more kernels after those that wait.
func TestAbortEndsKernelsThatStartLater(t *testing.T) {
	newTestGroup(t, atMost(t, 4), time.Minute).abort(sizes["lines"], 3)
}

// abort aborts on one rank after a number of calls that the last rank does not make.
func (w *testGroup) abort(count int64, calls int) {
	w.t.Helper()
	var launching sync.WaitGroup // ranks that make calls
	launching.Add(len(w.opened) - 1)
	w.withoutLast(count, func(m *testRank, p *power) error {
		var errs []error
		for range calls {
			errs = append(errs, p.raise(m.group, m.stream, driver.PathDirect))
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
			return fmt.Errorf("got %w, want %w", err, want)
		}
		return nil
	})
}

// withoutLast connects a group in which one call succeeds, and the last rank does not make the next
// one. Then it closes everything, and all ranks make a call in a new group with new memory.
func (w *testGroup) withoutLast(count int64, alone func(m *testRank, p *power) error) {
	w.t.Helper()
	w.regroup()
	w.withPower(count, func(m *testRank, p *power) error {
		if err := p.raise(m.group, m.stream, driver.PathDirect); err != nil {
			return err
		}
		if err := m.check(w, p, m.stream); err != nil {
			return err
		}
		if m.rank == len(w.opened)-1 {
			return nil
		}
		return alone(m, p)
	})
	w.must(func(m *testRank) error {
		err := m.leave()
		for _, s := range m.owned {
			err = errors.Join(err, s.segment.Unmap())
		}
		m.owned, m.mapped = nil, 0
		return err
	})
	w.regroup()
	w.withPower(count, func(m *testRank, p *power) error {
		if err := p.raise(m.group, m.stream, driver.PathDirect); err != nil {
			return err
		}
		return m.check(w, p, m.stream)
	})
}
