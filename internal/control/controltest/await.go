package controltest

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A plane connects a rank to the other ranks of a group. Submit announces a collective to them, and
// Await waits for its GPU work. These tests use no GPU: Wait.Done decides when the work completes.
// The Done of an unfinishedWait always returns false.

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

func testAwaitCompletedWork(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	canceledCtx, cancel := context.WithCancel(g.ctx)
	cancel()
	completed := unfinishedWait(g.planes[0].Submit())
	completed.Done = func() bool { return true }
	must(t, g.planes[0].Await(canceledCtx, completed))
}

func testCompletionEndsAwait(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		const manyPolls = 5000 // enough for Await to begin sleeping between polls
		for _, pollsLeft := range []int{1, 100, manyPolls} {
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

func testCanceledAwait(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	cause := errors.New("canceled by the test")
	canceledCtx, cancel := context.WithCancelCause(g.ctx)
	cancel(cause)
	expiredCtx, cancelExpired := context.WithDeadline(g.ctx, time.Now())
	defer cancelExpired()
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	checkError(t, "the canceled wait", p.Await(canceledCtx, wait), cause)
	err := p.Await(expiredCtx, wait)
	checkError(t, "a wait whose deadline has passed", err, context.DeadlineExceeded)
	// The planes still exchange payloads.
	g.planes[1].Submit()
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		const round = 1
		payloadSizes := []int{3, 4} // by group rank
		exchangeErr := g.exchangeAndCheck(i, driver.LaneControl, round, payloadSizes)
		return errors.Join(exchangeErr, checkOpen(p))
	})
}

func testLongWork(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		const workDuration = 3 * shortTimeout
		wait := unfinishedWait(p.Submit())
		begin := time.Now()
		wait.Done = func() bool { return time.Since(begin) > workDuration }
		if err := p.Await(g.ctx, wait); err != nil {
			return err
		}

		return checkOpen(p)
	})
}

// noTicket is the ticket of work that needs no other rank.
const noTicket = 0

// waitForPeerFailure waits until a rank notices that another rank has failed.
func waitForPeerFailure(p control.Plane) {
	for !p.PeerFailed() {
		runtime.Gosched()
	}
}

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

func testDiagnose(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	justBegun := time.Now()
	longAgo := justBegun.Add(-hangTimeout)
	must(t, p.Diagnose(wait, justBegun))
	timeoutErr := p.Diagnose(wait, longAgo)
	timeouts := CountTimeouts(t, timeoutErr, worldRanks(2)[1])
	if timeouts != 1 {
		t.Errorf("got %v, want a TimeoutError", timeoutErr)
	}

	must(t, checkOpen(p))
	g.planes[1].Abort(nil)
	waitForPeerFailure(p)
	checkError(t, "after the peer's fault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	must(t, checkOpen(p))
	completedWork := wait
	completedWork.Done = func() bool { return true }
	must(t, p.Diagnose(completedWork, longAgo))
	workWithoutPeers := unfinishedWait(noTicket)
	must(t, p.Diagnose(workWithoutPeers, longAgo))
	cause := errors.New("a local fault")
	checkError(t, "Fail", p.Fail(cause), cause)
	checkError(t, "after the local fault", p.Diagnose(wait, time.Now()), cause)
}

// After a failure, a wait for work that all ranks have submitted continues for control.Grace.
func testWorkAfterPeerFailure(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	g.planes[1].Submit()
	g.planes[1].Abort(nil)
	waitForPeerFailure(p)
	endlessWork := unfinishedWait(p.Submit())
	must(t, p.Diagnose(endlessWork, time.Now()))
	begin := time.Now()
	const duration = control.Grace / 5
	shortWork := endlessWork
	shortWork.Done = func() bool { return time.Since(begin) > duration }
	must(t, p.Await(g.ctx, shortWork))
	checkError(t, "endless work", p.Await(g.ctx, endlessWork), driver.ErrFault)
	checkError(t, "Cause", p.Cause(), driver.ErrFault)
}

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
