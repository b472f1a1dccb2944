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

// sizes are how many numbers a call has that goes in lines, and one that goes over the peers'
// buffers. raise checks that it does.
var sizes = map[string]int64{"lines": 1000, "buffers": 1 << 21}

// TestARankThatNeverComesIsNamed leaves kernels waiting for one rank until the deadline. The group
// is lost then, but not its memory, nor the GPUs.
func TestARankThatNeverComesIsNamed(t *testing.T) {
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
				case !errors.Is(err, driver.ErrFault): // a peer was faster, and names it
					return fmt.Errorf("got %w, want a TimeoutError that names the last rank", err)
				}
				return nil
			})
			if named.Load() == 0 {
				t.Error("no rank names the one that is missing")
			}
		})
	}
}

var errGivenUp = errors.New("this rank gives up")

// TestAbortEndsKernels has one rank abort while the kernels of all ranks but one wait for that one.
func TestAbortEndsKernels(t *testing.T) {
	for kind, count := range sizes {
		t.Run(kind, func(t *testing.T) { newTestGroup(t, atMost(t, 4), time.Minute).abort(count, 1) })
	}
}

// TestAbortEndsKernelsThatAreToCome has more kernels queued behind those that wait.
func TestAbortEndsKernelsThatAreToCome(t *testing.T) {
	newTestGroup(t, atMost(t, 4), time.Minute).abort(sizes["lines"], 3)
}

// abort has one rank abort after so many calls that the last rank does not come to.
func (w *testGroup) abort(count int64, calls int) {
	w.t.Helper()
	var launching sync.WaitGroup // the calls of all ranks that make them
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
			m.group.Abort(errGivenUp)
			want = errGivenUp
		}
		if err := m.stream.Synchronize(w.t.Context()); !errors.Is(err, want) {
			return fmt.Errorf("got %w, want %w", err, want)
		}
		return nil
	})
}

// withoutLast makes a group in which one call works, and the last rank does not come to the next.
// Then everything is closed, and all ranks go on in a new group over new memory.
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
