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

// In these tests, the last rank launches no call. The kernels of the other ranks wait for it until
// they time out or rank 0 aborts the group.

// countFor maps kinds of direct kernels to numbers of elements for which they are chosen.
var countFor = map[string]int64{"line": smallCount, "bulk": 1 << 21}

func TestTimeoutNamesAMissingRank(t *testing.T) {
	for kind, count := range countFor {
		t.Run(kind, func(t *testing.T) { waitForTimeout(t, count) })
	}
}

// waitForTimeout checks that a rank gets a TimeoutError about the last rank. Others may get
// ErrFault.
func waitForTimeout(t *testing.T, count int64) {
	t.Helper()
	g := newTestGroup(t, ranksUpTo(t, 4), 2*time.Second)
	missing := len(g.opened) - 1
	var timeoutCount atomic.Int32
	g.runWithoutLast(count, func(r *testRank, sum *repeatedSum) error {
		err := sum.launch(r.group, r.stream, driver.PathDirect)
		if err == nil {
			err = r.stream.Synchronize(t.Context())
		}

		var timeoutErr *driver.TimeoutError
		switch {
		case errors.As(err, &timeoutErr) && slices.Equal(timeoutErr.Missing, []int{missing}):
			timeoutCount.Add(1)
			return nil
		case errors.Is(err, driver.ErrFault): // another rank has timed out first
			return nil
		default:
			return failuref("got %v, want ErrFault or a TimeoutError about rank %d", err, missing)
		}
	})
	if timeoutCount.Load() == 0 {
		t.Errorf("no rank got a TimeoutError about rank %d", missing)
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

// abortWaitingCalls aborts the group on rank 0 while kernels wait for the last rank.
func abortWaitingCalls(t *testing.T, count int64, calls int) {
	t.Helper()
	g := newTestGroup(t, ranksUpTo(t, 4), time.Minute)
	var launched sync.WaitGroup
	launched.Add(len(g.opened) - 1)
	g.runWithoutLast(count, func(r *testRank, sum *repeatedSum) error {
		var errs []error
		for range calls {
			errs = append(errs, sum.launch(r.group, r.stream, driver.PathDirect))
		}

		launched.Done()
		if err := errors.Join(errs...); err != nil {
			return err
		}

		wantErr := driver.ErrFault
		if r.rank == 0 {
			launched.Wait()
			r.group.Abort(errAborted)
			wantErr = errAborted
		}

		if err := r.stream.Synchronize(t.Context()); !errors.Is(err, wantErr) {
			return failuref("Synchronize = %v, want %v", err, wantErr)
		}

		return nil
	})
}

// runWithoutLast makes a successful call on all ranks, and then runs f on all except the last.
// Afterwards, it checks that a new group works.
func (g *testGroup) runWithoutLast(count int64, f func(r *testRank, sum *repeatedSum) error) {
	g.t.Helper()
	g.regroup()
	g.withSum(count, func(r *testRank, sum *repeatedSum) error {
		if err := r.launchAndCheck(g, sum); err != nil {
			return err
		}

		if r.rank == len(g.opened)-1 {
			return nil
		}

		return f(r, sum)
	})
	g.must((*testRank).closeFailedGroup)
	g.regroup()
	g.withSum(count, func(r *testRank, sum *repeatedSum) error { return r.launchAndCheck(g, sum) })
}

// closeFailedGroup also frees the regions, so that new ones get the same addresses.
func (r *testRank) closeFailedGroup() error {
	err := r.closeGroup()
	for _, buffer := range r.regions {
		err = errors.Join(err, buffer.segment.Unmap())
	}

	r.reuseAddresses()
	return err
}

func (r *testRank) launchAndCheck(g *testGroup, sum *repeatedSum) error {
	if err := sum.launch(r.group, r.stream, driver.PathDirect); err != nil {
		return err
	}

	return r.check(g, sum, r.stream)
}
