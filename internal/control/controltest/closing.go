package controltest

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rank that closes its plane leaves the group. Suppose that rank 1 submits two collectives, with
// the tickets 1 and 2, and then leaves. Rank 0 can still submit tickets 1 and 2, and wait for the
// work of these collectives. But if it waits for the work of ticket 3, it gets a DeadlockError,
// because rank 1 never submits ticket 3.
//
// Before a rank leaves, it may withdraw a ticket: it declares that it does not launch the
// collective.

var closingRequirements = []requirement{
	{"a closed plane returns ErrClosed", testClosedPlane},
	{"closing a plane ends the rank's waits", testCloseEndsWaits},
	{
		"after a rank has left, TrySubmit returns only tickets that it had submitted",
		testTrySubmitAfterPeerLeft,
	},
	{"a rank that submitted all tickets before it left causes no error", testWaitAfterPeerLeft},
	{"a ticket that all ranks have submitted is not withdrawn", testCommonTicketIsKept},
	{"a rank that withdrew a ticket and left causes a DeadlockError", testWithdrawnTicket},
	{"ranks can close in any order", testCloseOrder},
}

// testClosedPlane calls the methods of a closed plane. A second Close, Fail and Abort change
// nothing.
func testClosedPlane(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	must(t, p.Close())
	must(t, p.Close()) // does nothing
	<-p.Failed()
	checkError(t, "Cause", p.Cause(), driver.ErrClosed)
	for name, wait := range waitFunctions {
		checkError(t, name, wait(p), driver.ErrClosed)
	}

	_, err := p.Exchange(g.ctx, driver.LaneFault, nil)
	checkError(t, "an exchange of fault reports", err, driver.ErrClosed)
	checkError(t, "Diagnose", p.Diagnose(unfinishedWait(1), time.Now()), driver.ErrClosed)
	if !p.PeerFailed() {
		t.Error("PeerFailed = false for a closed plane, want true")
	}

	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit of a closed plane returned ticket %d", ticket)
	}

	causeAfterClose := errors.New("a fault after Close")
	checkError(t, "Fail", p.Fail(causeAfterClose), causeAfterClose)
	p.Abort(nil)
	checkError(t, "Cause after Fail and Abort", p.Cause(), driver.ErrClosed)
}

// testCloseEndsWaits closes a plane in which another goroutine waits, or is about to.
func testCloseEndsWaits(t *testing.T, join Join) {
	for name, wait := range waitFunctions {
		g := newGroup(t, join, 2, hangTimeout)
		p := g.planes[0]
		result := make(chan error, 1)
		started := make(chan struct{})
		go func() {
			close(started)
			result <- wait(p)
		}()
		<-started
		must(t, p.Close())
		checkError(t, name, <-result, driver.ErrClosed)
	}
}

// testTrySubmitAfterPeerLeft lets rank 0 submit one collective and rank 1, the peer, two. Then the
// peer leaves, so rank 0 can submit only one more.
func testTrySubmitAfterPeerLeft(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p, peer := g.planes[0], g.planes[1]
	p.Submit()
	peer.Submit()
	peer.Submit()
	must(t, peer.Close())
	// The peer can no longer submit ticket 3. Wait until p knows this.
	for p.Diagnose(unfinishedWait(3), time.Now()) == nil {
		_ = p.Diagnose(unfinishedWait(noTicket), time.Now()) // gives other goroutines time to run
	}

	if ticket, ok := p.TrySubmit(); ticket != 2 || !ok {
		t.Errorf("TrySubmit = %d, %v; want 2, true, because the peer has submitted it", ticket, ok)
	}

	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit returned ticket %d, which the peer has not submitted", ticket)
	}

	if p.PeerFailed() {
		t.Error("PeerFailed = true after a peer has left, want false")
	}

	must(t, checkOpen(p))
}

// testWaitAfterPeerLeft lets rank 0 wait for the work of a ticket that rank 1 had submitted before
// it left. The wait must not fail. The test cancels it after many polls.
func testWaitAfterPeerLeft(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.planes[1].Submit()
	must(t, g.planes[1].Close())
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	const enoughPolls = 5000 // Await checks for faults several times meanwhile
	polls := 0
	wait.Done = func() bool {
		polls++
		if polls == enoughPolls {
			cancel()
		}

		return false
	}
	checkError(t, "the wait", p.Await(ctx, wait), context.Canceled)
	must(t, checkOpen(p))
}

// testCommonTicketIsKept calls Withdraw for a ticket that all ranks have just submitted. No
// message follows the tickets, so a rank on another machine learns of them only by asking.
func testCommonTicketIsKept(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	for _, p := range g.planes {
		p.Submit()
	}

	if g.planes[0].Withdraw() {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}
}

// testWithdrawnTicket lets rank 1, the peer, submit two collectives, withdraw the second and
// leave. Rank 0 then submits the second collective, which can no longer complete.
func testWithdrawnTicket(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p, peer := g.planes[0], g.planes[1]
	peer.Submit()
	first := unfinishedWait(p.Submit())
	first.Done = func() bool { return true }
	must(t, p.Await(g.ctx, first))
	// After an exchange, each rank knows which tickets the other has submitted.
	g.runOnEach(func(_ int, p control.Plane) error {
		_, err := p.Exchange(g.ctx, driver.LaneControl, nil)
		return err
	})
	peer.Submit()
	if !peer.Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}

	ticketAfterWithdraw := peer.Submit()
	if ticketAfterWithdraw == 0 {
		t.Error("Submit after Withdraw returned 0")
	}

	must(t, peer.Close())
	err := p.Await(g.ctx, unfinishedWait(p.Submit()))
	checkDeadlock(t, err, worldRanks(2)[1])
}

// testCloseOrder closes the planes of three ranks one after the other, beginning with each rank
// once.
func testCloseOrder(t *testing.T, join Join) {
	for first := range 3 {
		g := newGroup(t, join, 3, hangTimeout)
		g.mustRunOnEach(t, func(_ int, p control.Plane) error {
			return p.Compare(p.Submit(), &driver.Call{Digest: 4})
		})
		for i := range 3 {
			must(t, g.planes[(first+i)%3].Close())
		}
	}
}
