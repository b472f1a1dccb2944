package controltest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// verdictRequirements are sentences about the errors of waits. They state which error a wait
// returns, and about which ranks.
var verdictRequirements = []requirement{
	{"the error lists a failed rank, not a late one", testErrorNamesFailedRank},
	{
		"the error omits a rank that failed only because another rank had failed",
		testErrorOmitsRankThatFailedLater,
	},
	{"the error lists the aborting rank and matches ErrAborted", testErrorNamesAbortingRank},
	{"the error lists a rank that has left, not a late one", testErrorNamesRankThatLeft},
	{
		"two ranks that wait for each other in different calls get errors about each other",
		testDeadlockErrors,
	},
	{
		"a rank that leaves too early and exits causes a DeadlockError, not a RankLostError",
		testExitAfterLeavingEarly,
	},
	{"the error of a wait whose context ends lists the missing ranks", testWaitPastDeadline},
	{"a late rank causes warnings while the wait continues", testLateWarning},
	{"long work that all ranks have submitted causes no warning", testLongWorkWithoutWarning},
}

// testEachWait tests every kind of wait (see waitFunctions) in a new group of n ranks. It calls
// before, waits on rank 0, and passes the error of the wait to check.
func testEachWait(
	t *testing.T, join Join, n int, before func(t *testing.T, g *localGroup),
	check func(t *testing.T, g *localGroup, err error),
) {
	t.Helper()
	for name, wait := range waitFunctions {
		t.Run("in "+name, func(t *testing.T) {
			g := newGroup(t, join, n, hangTimeout)
			before(t, g)
			err := wait(g.planes[0])
			check(t, g, err)
		})
	}
}

// testErrorNamesFailedRank lets rank 1 of three fail. Rank 2 never arrives.
func testErrorNamesFailedRank(t *testing.T, join Join) {
	before := func(_ *testing.T, g *localGroup) {
		_ = g.planes[1].Fail(errors.New("a GPU has fallen off the bus"))
		waitForPeerFailure(g.planes[0])
	}
	check := func(t *testing.T, g *localGroup, err error) {
		t.Helper()
		checkPeerError(t, err, g.worldRank(1))
		if errors.Is(err, driver.ErrAborted) {
			t.Errorf("got %v, want an error that does not match ErrAborted", err)
		}
	}
	testEachWait(t, join, 3, before, check)
}

// testErrorOmitsRankThatFailedLater lets rank 1 of three fail, and then rank 2 because of rank 1.
func testErrorOmitsRankThatFailedLater(t *testing.T, join Join) {
	before := func(t *testing.T, g *localGroup) {
		t.Helper()
		_ = g.planes[1].Fail(errors.New("a GPU has fallen off the bus"))
		waitForPeerFailure(g.planes[0]) // before the next rank fails
		waitForPeerFailure(g.planes[2])
		err := waitFunctions["a wait for work"](g.planes[2]) // makes rank 2 fail, too
		checkError(t, "the second failure", err, driver.ErrFault)
	}
	check := func(t *testing.T, g *localGroup, err error) {
		t.Helper()
		checkPeerError(t, err, g.worldRank(1))
	}
	testEachWait(t, join, 3, before, check)
}

// testErrorNamesAbortingRank lets rank 1 of two abort the group and leave.
func testErrorNamesAbortingRank(t *testing.T, join Join) {
	before := func(t *testing.T, g *localGroup) {
		t.Helper()
		g.planes[1].Abort(nil) // without a cause
		waitForPeerFailure(g.planes[0])
		must(t, g.planes[1].Close())
	}
	check := func(t *testing.T, g *localGroup, err error) {
		t.Helper()
		checkPeerError(t, err, g.worldRank(1))
		checkError(t, "after an abort", err, driver.ErrAborted)
	}
	testEachWait(t, join, 2, before, check)
}

// testErrorNamesRankThatLeft lets rank 2 of three leave. Rank 1 never arrives.
func testErrorNamesRankThatLeft(t *testing.T, join Join) {
	before := func(t *testing.T, g *localGroup) {
		t.Helper()
		must(t, g.planes[2].Close())
	}
	check := func(t *testing.T, g *localGroup, err error) {
		t.Helper()
		checkDeadlockAbout(t, err, g.worldRank(2))
	}
	testEachWait(t, join, 3, before, check)
}

// testDeadlockErrors lets one of two ranks wait in an exchange and the other one in another call.
// The first rank that detects the deadlock fails. The other rank can get a PeerError instead.
func testDeadlockErrors(t *testing.T, join Join) {
	for _, name := range []string{"a comparison", "a wait for work"} {
		for exchangingRank := range 2 {
			g := newGroup(t, join, 2, hangTimeout)
			errs := g.runOnEach(func(i int, p control.Plane) error {
				if i == exchangingRank {
					return waitFunctions["an exchange"](p)
				}

				return waitFunctions[name](p)
			})
			deadlocks := 0
			for i, err := range errs {
				otherRank := g.worldRank(1 - i)
				if errors.Is(err, driver.ErrFault) {
					checkPeerError(t, err, otherRank)
				} else {
					checkDeadlockAbout(t, err, otherRank)
					deadlocks++
				}
			}

			if deadlocks == 0 {
				t.Errorf("in %s: no rank got a DeadlockError", name)
			}
		}
	}
}

// testExitAfterLeavingEarly lets rank 0 wait for a ticket that rank 1 had not submitted when rank 1
// left. The process of rank 1 exits long before the wait ends.
func testExitAfterLeavingEarly(t *testing.T, _ Join) {
	procs := startProcesses(t, 2, leaveEarlyTask, hangTimeout)
	if err := procs[1].command.Wait(); err != nil {
		t.Error(err)
	}

	procs[0].checkOutcome(procs[0].awaitOutcome(), "deadlock", 1)
}

// testWaitPastDeadline also checks that the plane stays open.
func testWaitPastDeadline(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	ctx, cancel := context.WithTimeout(g.ctx, shortTimeout)
	defer cancel()
	p := g.planes[0]
	err := p.Await(ctx, newEndlessWait(p.Submit()))
	if CountTimeouts(t, err, g.worldRank(1)) == 0 {
		t.Errorf("got %v, want a TimeoutError", err)
	}

	checkError(t, "the wait", err, context.DeadlineExceeded)
	must(t, checkOpen(p))
}

// warningDelay is the Late.After of the tests. It is short, because the tests wait for warnings.
const warningDelay = 20 * time.Millisecond

// testLateWarning waits on rank 0 until the rank has got two warnings. Then rank 1 arrives. The
// wait for work, which never completes, is canceled instead.
func testLateWarning(t *testing.T, join Join) {
	waits := map[string]func(ctx context.Context, p control.Plane) error{
		"a comparison": func(_ context.Context, p control.Plane) error {
			return waitFunctions["a comparison"](p)
		},
		"an exchange": func(_ context.Context, p control.Plane) error {
			return waitFunctions["an exchange"](p)
		},
		"a background exchange": func(ctx context.Context, p control.Plane) error {
			_, err := p.Exchange(ctx, driver.LaneBackground, nil)
			return err
		},
		"a wait for work": func(ctx context.Context, p control.Plane) error {
			err := p.Await(ctx, newEndlessWait(p.Submit()))
			if errors.Is(err, context.Canceled) {
				return nil
			}

			return err
		},
	}
	for name, wait := range waits {
		t.Run("from "+name, func(t *testing.T) {
			warnings := make(chan driver.LateWarning, 1000) // has room for all, so Warn returns
			late := driver.Late{
				After: warningDelay,
				Warn:  func(l driver.LateWarning) { warnings <- l },
			}
			g := newGroupLike(t, join, 2, Member{Timeout: hangTimeout, Late: late})
			for len(warnings) > 0 {
				<-warnings // issued while the ranks joined on a busy machine
			}

			ctx, cancel := context.WithCancel(g.ctx)
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- wait(ctx, g.planes[0]) }()
			// The second warning comes twice the delay after the first one.
			checkWarning(t, g, <-warnings, warningDelay)
			checkWarning(t, g, <-warnings, 3*warningDelay)
			if name == "a wait for work" {
				cancel()
			} else {
				must(t, wait(ctx, g.planes[1]))
			}

			must(t, <-result)
			must(t, checkOpen(g.planes[0]))
		})
	}
}

// checkWarning checks that a warning describes group rank 1, after a wait of at least minWaited.
func checkWarning(
	t *testing.T, g *localGroup, l driver.LateWarning, minWaited time.Duration,
) {
	t.Helper()
	lateRank := g.worldRank(1)
	isAboutRank := slices.Equal(l.Ranks, []int{lateRank}) && l.Activity[lateRank] != ""
	isAboutCall := l.Group == groupName && l.InCall != ""
	if !isAboutRank || !isAboutCall || l.Waited < minWaited {
		t.Errorf("got %+v, want a warning about world rank %d after %v", l, lateRank, minWaited)
	}
}

// testLongWorkWithoutWarning lets work take longer than the delay of warnings after all ranks have
// submitted it.
func testLongWorkWithoutWarning(t *testing.T, join Join) {
	var submitted atomic.Bool // set once no rank can be late
	late := driver.Late{
		After: warningDelay,
		Warn: func(l driver.LateWarning) {
			if submitted.Load() {
				t.Errorf("unexpected warning: %v", &l)
			}
		},
	}
	g := newGroupLike(t, join, 2, Member{Timeout: hangTimeout, Late: late})
	for _, p := range g.planes {
		p.Submit()
	}

	// After an exchange, each rank knows which tickets the other has submitted.
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		_, err := p.Exchange(g.ctx, driver.LaneControl, nil)
		return err
	})
	submitted.Store(true)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		begin := time.Now()
		const ticket = 1 // which both ranks have submitted
		wait := newWait(ticket, func() bool { return time.Since(begin) > 4*warningDelay })
		return p.Await(g.ctx, wait)
	})
}
