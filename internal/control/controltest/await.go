package controltest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rank calls Await to wait for work that it has launched, such as a collective on a GPU. Here,
// ranks 0 and 1 only submit collectives. unfinishedWait(ticket) describes the work of the
// collective with this ticket, its number. The work never completes, unless the test sets Done.

var awaitRequirements = []requirement{
	{"Await returns immediately if the work has completed", testAwaitCompletedWork},
	{"a wait ends when its work completes", testCompletionEndsAwait},
	{"if the context is canceled, Await returns and the plane stays open", testCanceledAwait},
	{"work that all ranks have submitted can take longer than the timeout", testLongWork},
	{"work that needs no other rank completes after another rank has failed", testWorkWithoutPeers},
	{"Diagnose returns immediately, and the plane does not fail", testDiagnose},
	{"work can complete if a peer fails after submitting it", testWorkAfterPeerFailure},
	{"an error that FindFault returns replaces the error about a failed peer", testFindFault},
}

// testAwaitCompletedWork uses a canceled context: Await must not wait at all.
func testAwaitCompletedWork(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	ctx, cancel := context.WithCancel(g.ctx)
	cancel()
	completed := unfinishedWait(g.planes[0].Submit())
	completed.Done = func() bool { return true }
	must(t, g.planes[0].Await(ctx, completed))
}

// testCompletionEndsAwait waits for work that completes at the first poll, after a few polls, and
// after many. With many polls, Await sleeps between the last ones.
func testCompletionEndsAwait(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		for _, pollsLeft := range []int{1, 100, 5000} {
			wait := unfinishedWait(p.Submit())
			wait.Done = func() bool {
				pollsLeft--
				return pollsLeft <= 0
			}
			if err := p.Await(g.ctx, wait); err != nil {
				return err
			}
		}

		return checkOpen(p)
	})
}

// testCanceledAwait lets rank 0 wait with a canceled context, and with one whose deadline has
// passed. Afterwards, an exchange must still work.
func testCanceledAwait(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	cause := errors.New("canceled by the test")
	canceledCtx, cancel := context.WithCancelCause(g.ctx)
	cancel(cause)
	expiredCtx, stop := context.WithDeadline(g.ctx, time.Now())
	defer stop()
	p := g.planes[0]
	ticket := p.Submit()
	err := p.Await(canceledCtx, unfinishedWait(ticket))
	checkError(t, "the canceled wait", err, cause)
	err = p.Await(expiredCtx, unfinishedWait(ticket))
	checkError(t, "a wait whose deadline has passed", err, context.DeadlineExceeded)
	g.planes[1].Submit()
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		payloadSizes := []int{3, 4} // by group rank
		exchangeErr := g.exchangeAndCheck(i, driver.LaneControl, 1, payloadSizes)
		return errors.Join(exchangeErr, checkOpen(p))
	})
}

// testLongWork waits for work that all ranks have submitted and that takes 3 times the timeout.
func testLongWork(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		wait := unfinishedWait(p.Submit())
		begin := time.Now()
		wait.Done = func() bool { return time.Since(begin) > 3*shortTimeout }
		if err := p.Await(g.ctx, wait); err != nil {
			return err
		}

		return checkOpen(p)
	})
}

// noTicket is the ticket of work that needs no other rank.
const noTicket = 0

// waitForPeerFailure waits until the plane of a rank has noticed that another rank has failed.
func waitForPeerFailure(p control.Plane) {
	for !p.PeerFailed() {
		_ = p.Diagnose(unfinishedWait(noTicket), time.Now()) // gives other goroutines time to run
	}
}

// testWorkWithoutPeers lets rank 0 wait for work that needs no other rank while rank 1 fails.
func testWorkWithoutPeers(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	isDone := atomic.Bool{}
	workWithoutPeers := unfinishedWait(noTicket)
	workWithoutPeers.Done = isDone.Load
	result := make(chan error, 1)
	go func() { result <- g.planes[0].Await(g.ctx, workWithoutPeers) }()
	g.planes[1].Abort(nil)
	waitForPeerFailure(g.planes[0])
	if ticket, ok := g.planes[0].TrySubmit(); ok {
		t.Errorf("TrySubmit after a peer's fault returned ticket %d", ticket)
	}

	isDone.Store(true)
	must(t, <-result)
	must(t, checkOpen(g.planes[0]))
}

// testDiagnose calls Diagnose on rank 0: for a wait that has just begun, for one that has timed
// out, after a fault of rank 1, and after a fault of rank 0.
func testDiagnose(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	must(t, p.Diagnose(wait, time.Now()))
	longAgo := time.Now().Add(-hangTimeout)
	timeoutErr := p.Diagnose(wait, longAgo)
	isTimeout := CountTimeouts(t, timeoutErr, worldRanks(2)[1]) == 1
	if !isTimeout {
		t.Errorf("got %v, want a TimeoutError", timeoutErr)
	}

	must(t, checkOpen(p))
	g.planes[1].Abort(nil)
	waitForPeerFailure(p)
	checkError(t, "after the peer's fault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	must(t, checkOpen(p))
	completed := wait
	completed.Done = func() bool { return true }
	must(t, p.Diagnose(completed, longAgo))
	must(t, p.Diagnose(unfinishedWait(noTicket), longAgo))
	cause := errors.New("a local fault")
	checkError(t, "Fail", p.Fail(cause), cause)
	checkError(t, "after the local fault", p.Diagnose(unfinishedWait(1), time.Now()), cause)
}

// testWorkAfterPeerFailure lets rank 1 fail after it has submitted ticket 1. On rank 0, the wait
// for the work of the ticket continues for control.Grace, because the work may still complete.
func testWorkAfterPeerFailure(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	g.planes[1].Submit()
	g.planes[1].Abort(nil)
	waitForPeerFailure(p)
	wait := unfinishedWait(p.Submit())
	must(t, p.Diagnose(wait, time.Now()))
	begin := time.Now()
	wait.Done = func() bool { return time.Since(begin) > control.Grace/5 }
	must(t, p.Await(g.ctx, wait))
	checkError(t, "endless work", p.Await(g.ctx, unfinishedWait(1)), driver.ErrFault)
	checkError(t, "Cause", p.Cause(), driver.ErrFault)
}

// testFindFault lets rank 1 abort while rank 0 waits. Without FindFault, the error on rank 0 would
// be ErrFault. First, FindFault returns nil, which changes nothing.
func testFindFault(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	kernelFault := errors.New("a fault that a kernel has reported")
	wait.FindFault = func() error { return nil }
	g.planes[1].Abort(nil)
	waitForPeerFailure(p)
	checkError(t, "without an error from FindFault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	wait.FindFault = func() error { return kernelFault }
	checkError(t, "Diagnose", p.Diagnose(wait, time.Now()), kernelFault)
	checkError(t, "the wait", p.Await(g.ctx, wait), kernelFault)
	checkError(t, "Cause", p.Cause(), kernelFault)
}
