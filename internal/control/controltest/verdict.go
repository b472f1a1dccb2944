package controltest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// verdictContracts test that all kinds of planes return the same types of errors about the same
// ranks.
var verdictContracts = []contract{
	{"the error names a failed rank rather than a late one", testFailedIsNamed},
	{"the error does not name a rank that failed after another's fault", testFollowerIsNotNamed},
	{"the error names the aborting rank and matches ErrAborted", testAbortIsNamed},
	{"the error names a rank that has left rather than a late one", testLeftIsNamed},
	{"two ranks that wait for each other in different calls report each other", testDeadlockNames},
	{"a rank that leaves early and exits causes a deadlock and is not lost", testLeftAndEnded},
	{"the error of a wait whose context ends lists the missing ranks", testInterrupted},
	{"a late rank causes warnings while the wait continues", testWarning},
	{"long work that all ranks have submitted causes no warning", testNoWarning},
}

// testEachWait tests every kind of wait. For each, it creates a world, calls before, waits on
// rank 0, and passes the error of the wait to judge.
func testEachWait(
	t *testing.T, join Join, n int, before func(t *testing.T, w *world),
	judge func(t *testing.T, err error),
) {
	t.Helper()
	for name, wait := range waits {
		t.Run("in "+name, func(t *testing.T) {
			w := newWorld(t, join, n, patience)
			before(t, w)
			judge(t, wait(w.planes[0]))
		})
	}
}

func checkPeerError(t *testing.T, err error, rank int) {
	t.Helper()
	var peer *driver.PeerError
	if !errors.As(err, &peer) || !slices.Equal(peer.Ranks, []int{rank}) ||
		!strings.Contains(err.Error(), fmt.Sprintf("world rank %d", rank)) {
		t.Errorf("got %v, want a PeerError about world rank %d", err, rank)
	}
}

func testFailedIsNamed(t *testing.T, join Join) {
	testEachWait(t, join, 3, func(_ *testing.T, w *world) {
		_ = w.planes[1].Fail(errors.New("a GPU has fallen off the bus"))
		awaitPeerFailed(w.planes[0])
	}, func(t *testing.T, err error) {
		checkPeerError(t, err, ranksOf(3)[1])
		if errors.Is(err, driver.ErrAborted) {
			t.Errorf("got %v, want an error that does not match ErrAborted", err)
		}
	})
}

func testFollowerIsNotNamed(t *testing.T, join Join) {
	testEachWait(t, join, 3, func(t *testing.T, w *world) {
		_ = w.planes[1].Fail(errors.New("a GPU has fallen off the bus"))
		awaitPeerFailed(w.planes[0]) // before the next rank fails
		awaitPeerFailed(w.planes[2])
		checkError(t, "the second failure", waits["a wait for work"](w.planes[2]), driver.ErrFault)
	}, func(t *testing.T, err error) { checkPeerError(t, err, ranksOf(3)[1]) })
}

func testAbortIsNamed(t *testing.T, join Join) {
	testEachWait(t, join, 2, func(t *testing.T, w *world) {
		w.planes[1].Abort(nil)
		awaitPeerFailed(w.planes[0])
		must(t, w.planes[1].Close())
	}, func(t *testing.T, err error) {
		checkPeerError(t, err, ranksOf(2)[1])
		checkError(t, "after an abort", err, driver.ErrAborted)
	})
}

func checkDeadlock(t *testing.T, err error, ranks ...int) {
	t.Helper()
	deadlock, ok := errors.AsType[*driver.DeadlockError](err)
	if !ok || len(deadlock.Activity) != len(ranks) {
		t.Errorf("got %v, want a DeadlockError about world ranks %v", err, ranks)
		return
	}
	for _, r := range ranks {
		if deadlock.Activity[r] == "" {
			t.Errorf("got %v, want an error about world rank %d", err, r)
		}
	}
}

func testLeftIsNamed(t *testing.T, join Join) {
	testEachWait(t, join, 3, func(t *testing.T, w *world) {
		must(t, w.planes[2].Close())
	}, func(t *testing.T, err error) { checkDeadlock(t, err, ranksOf(3)[2]) })
}

func testDeadlockNames(t *testing.T, join Join) {
	for _, name := range []string{"a comparison", "a wait for work"} {
		for elsewhere := range 2 {
			w := newWorld(t, join, 2, patience)
			deadlocks := 0
			for r, err := range w.outcomes(func(i int, p control.Plane) error {
				if i == elsewhere {
					return waits["an exchange"](p)
				}
				return waits[name](p)
			}) {
				if other := ranksOf(2)[1-r]; errors.Is(err, driver.ErrFault) {
					checkPeerError(t, err, other)
				} else {
					checkDeadlock(t, err, other)
					deadlocks++
				}
			}
			if deadlocks == 0 {
				t.Errorf("in %s: no rank got a DeadlockError", name)
			}
		}
	}
}

// In testLeftAndEnded, rank 0 waits for a ticket that rank 1 had not submitted when it left.
// The process of rank 1 exits long before the wait ends.
func testLeftAndEnded(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveEarlyProgram, patience)
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}
	if o := procs[0].await("outcome"); o.Kind != "deadlock" || !slices.Equal(o.Ranks, []int{1}) {
		t.Errorf("outcome of rank 0 = %+v, want a DeadlockError about rank 1", o)
	}
}

func testInterrupted(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ctx, cancel := context.WithTimeout(w.ctx, shortTimeout)
	defer cancel()
	p := w.planes[0]
	err := p.Await(ctx, unfinishedWait(p.Submit()))
	if WantAbsence(t, err, ranksOf(2)[1]) == 0 {
		t.Errorf("got %v, want a TimeoutError", err)
	}
	checkError(t, "the wait", err, context.DeadlineExceeded)
	must(t, checkOpen(p))
}

const warningDelay = 20 * time.Millisecond

// testWarning waits for two warnings on rank 0. Rank 1 then arrives, or the wait is canceled.
func testWarning(t *testing.T, join Join) {
	calls := map[string]func(ctx context.Context, p control.Plane) error{
		"a comparison": func(_ context.Context, p control.Plane) error {
			return waits["a comparison"](p)
		},
		"an exchange": func(_ context.Context, p control.Plane) error { return waits["an exchange"](p) },
		"a background exchange": func(ctx context.Context, p control.Plane) error {
			_, err := p.Exchange(ctx, driver.LaneBackground, nil)
			return err
		},
		"a wait for work": func(ctx context.Context, p control.Plane) error {
			err := p.Await(ctx, unfinishedWait(p.Submit()))
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		},
	}
	for name, wait := range calls {
		t.Run("from "+name, func(t *testing.T) {
			warnings := make(chan driver.LateWarning, 1000)
			w := newWarningWorld(t, join, 2, driver.Late{
				After: warningDelay, Warn: func(l driver.LateWarning) { warnings <- l },
			})
			for len(warnings) > 0 {
				<-warnings // issued while the ranks joined on a busy machine
			}
			ctx, cancel := context.WithCancel(w.ctx)
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- wait(ctx, w.planes[0]) }()
			for number := range 2 {
				checkWarning(t, <-warnings, time.Duration(2*number+1)*warningDelay)
			}
			if name == "a wait for work" {
				cancel()
			} else {
				must(t, wait(ctx, w.planes[1]))
			}
			must(t, <-ended)
			must(t, checkOpen(w.planes[0]))
		})
	}
}

func checkWarning(t *testing.T, l driver.LateWarning, waited time.Duration) {
	t.Helper()
	late := ranksOf(2)[1]
	if !slices.Equal(l.Ranks, []int{late}) || l.Group != "planes" || l.InCall == "" ||
		l.Activity[late] == "" || l.Waited < waited {
		t.Errorf("got %+v, want a warning about world rank %d after %v", l, late, waited)
	}
}

func testNoWarning(t *testing.T, join Join) {
	var submitted atomic.Bool // set once no rank can be late anymore
	w := newWarningWorld(t, join, 2, driver.Late{
		After: warningDelay, Warn: func(l driver.LateWarning) {
			if submitted.Load() {
				t.Errorf("unexpected warning: %v", &l)
			}
		},
	})
	for _, p := range w.planes {
		p.Submit()
	}
	// After this exchange, each rank knows which tickets the other has submitted.
	w.each(t, func(_ int, p control.Plane) error {
		_, err := p.Exchange(w.ctx, driver.LaneControl, nil)
		return err
	})
	submitted.Store(true)
	w.each(t, func(_ int, p control.Plane) error {
		begin := time.Now()
		wait := unfinishedWait(1)
		wait.Done = func() bool { return time.Since(begin) > 4*warningDelay }
		return p.Await(w.ctx, wait)
	})
}
