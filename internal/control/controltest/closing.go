package controltest

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rank that closes its plane leaves the group. Suppose that it has submitted collectives 1 and 2,
// whose numbers are called tickets. Another rank can still wait for their work, but gets a
// DeadlockError if it waits for ticket 3.
//
// A rank may withdraw a ticket before it leaves, to declare that it does not launch the collective.

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

func testClosedPlane(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	must(t, p.Close())
	must(t, p.Close())
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

func testTrySubmitAfterPeerLeft(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p, peer := g.planes[0], g.planes[1]
	p.Submit()
	peer.Submit()
	peer.Submit()
	must(t, peer.Close())
	const impossibleTicket = 3 // the peer can no longer submit it
	for p.Diagnose(unfinishedWait(impossibleTicket), time.Now()) == nil {
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

// The wait continues until the test cancels it.
func testWaitAfterPeerLeft(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	g.planes[1].Submit()
	must(t, g.planes[1].Close())
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	pollsLeft := 5000 // enough for several checks for faults
	wait.Done = func() bool {
		pollsLeft--
		if pollsLeft == 0 {
			cancel()
		}

		return false
	}
	checkError(t, "the wait", p.Await(ctx, wait), context.Canceled)
	must(t, checkOpen(p))
}

// No other message follows the tickets, so a rank on another machine learns of them only by asking.
func testCommonTicketIsKept(t *testing.T, join Join) {
	g := newGroup(t, join, 3, hangTimeout)
	for _, p := range g.planes {
		p.Submit()
	}

	if g.planes[0].Withdraw() {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}
}

func testWithdrawnTicket(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p, peer := g.planes[0], g.planes[1]
	peer.Submit()
	first := unfinishedWait(p.Submit())
	first.Done = func() bool { return true }
	must(t, p.Await(g.ctx, first))
	// The exchange makes the first ticket known to both ranks.
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

func testCloseOrder(t *testing.T, join Join) {
	const rankCount = 3
	for first := range rankCount {
		g := newGroup(t, join, rankCount, hangTimeout)
		g.mustRunOnEach(t, func(_ int, p control.Plane) error {
			return p.Compare(p.Submit(), &driver.Call{Digest: 4})
		})
		for i := range rankCount {
			must(t, g.planes[(first+i)%rankCount].Close())
		}
	}
}
