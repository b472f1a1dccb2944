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

// Submit announces a collective to the other ranks and returns its ticket. Await then waits until
// Wait.Done returns true. If another rank fails, PeerFailed becomes true, but this rank's plane
// stays open until a wait returns the fault.

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
	completedWork := newWait(g.planes[0].Submit(), func() bool { return true })
	must(t, g.planes[0].Await(canceledCtx, completedWork))
}

func testCompletionEndsAwait(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		const pollsUntilSleep = 5000 // Await then sleeps between polls
		for _, wantPolls := range []int{1, 100, pollsUntilSleep} {
			polls := 0
			wait := newWait(p.Submit(), func() bool {
				polls++
				return polls >= wantPolls
			})
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
	p, peer := g.planes[0], g.planes[1]
	wait := newEndlessWait(p.Submit())
	checkError(t, "the canceled wait", p.Await(canceledCtx, wait), cause)
	err := p.Await(expiredCtx, wait)
	checkError(t, "a wait whose deadline has passed", err, context.DeadlineExceeded)
	peer.Submit()
	g.mustRunOnEach(t, func(i int, p control.Plane) error {
		const round = 1
		payloadSizes := []int{3, 4} // by group rank
		exchangeErr := g.checkExchange(i, driver.LaneControl, round, payloadSizes)
		return errors.Join(exchangeErr, checkOpen(p))
	})
}

func testLongWork(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		const workDuration = 3 * shortTimeout
		ticket := p.Submit()
		begin := time.Now()
		wait := newWait(ticket, func() bool { return time.Since(begin) > workDuration })
		if err := p.Await(g.ctx, wait); err != nil {
			return err
		}

		return checkOpen(p)
	})
}

func testWorkWithoutPeers(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	isDone := atomic.Bool{}
	result := make(chan error, 1)
	go func() { result <- p.Await(g.ctx, newWait(noTicket, isDone.Load)) }()
	g.abortPeer()
	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit after a peer's fault returned ticket %d", ticket)
	}

	isDone.Store(true)
	must(t, <-result)
	must(t, checkOpen(p))
}

func testDiagnose(t *testing.T, join Join) {
	g := newGroup(t, join, 2, shortTimeout)
	p := g.planes[0]
	ticket := p.Submit()
	wait := newEndlessWait(ticket)
	justBegun := time.Now()
	longAgo := justBegun.Add(-2 * shortTimeout)
	must(t, p.Diagnose(wait, justBegun))
	timeoutErr := p.Diagnose(wait, longAgo)
	if CountTimeouts(t, timeoutErr, g.worldRank(1)) != 1 {
		t.Errorf("got %v, want a TimeoutError about world rank %d", timeoutErr, g.worldRank(1))
	}

	must(t, checkOpen(p))
	g.abortPeer()
	checkError(t, "after the peer's fault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	must(t, checkOpen(p))
	completedWork := newWait(ticket, func() bool { return true })
	must(t, p.Diagnose(completedWork, longAgo))
	workWithoutPeers := newEndlessWait(noTicket)
	must(t, p.Diagnose(workWithoutPeers, longAgo))
	cause := errors.New("a local fault")
	checkError(t, "Fail", p.Fail(cause), cause)
	checkError(t, "after the local fault", p.Diagnose(wait, time.Now()), cause)
}

// A wait for work that the peer submitted before it failed continues for control.Grace.
func testWorkAfterPeerFailure(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p, peer := g.planes[0], g.planes[1]
	peer.Submit()
	g.abortPeer()
	ticket := p.Submit()
	endlessWork := newEndlessWait(ticket)
	must(t, p.Diagnose(endlessWork, time.Now()))
	const shortDuration = control.Grace / 5
	begin := time.Now()
	shortWork := newWait(ticket, func() bool { return time.Since(begin) > shortDuration })
	must(t, p.Await(g.ctx, shortWork))
	checkError(t, "endless work", p.Await(g.ctx, endlessWork), driver.ErrFault)
	checkError(t, "Cause", p.Cause(), driver.ErrFault)
}

func testFindFault(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	wait := newEndlessWait(p.Submit())
	g.abortPeer()
	wait.FindFault = func() error { return nil }
	checkError(t, "without an error from FindFault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	kernelFault := errors.New("a fault that a kernel has reported")
	wait.FindFault = func() error { return kernelFault }
	checkError(t, "Diagnose", p.Diagnose(wait, time.Now()), kernelFault)
	checkError(t, "the wait", p.Await(g.ctx, wait), kernelFault)
	checkError(t, "Cause", p.Cause(), kernelFault)
}
