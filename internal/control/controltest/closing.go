package controltest

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rank leaves a group when it closes its plane. Its peers can still wait for collectives that it
// has submitted. A wait for any other collective returns a DeadlockError.
//
// A rank can withdraw the tickets of collectives that it will not launch.

var closingRequirements = []requirement{
	{"a closed plane returns ErrClosed", testClosedPlane},
	{"closing a plane ends the rank's waits", testCloseEndsWaits},
	{
		"TrySubmit returns no ticket that a rank has left without submitting",
		testTrySubmitAfterPeerLeft,
	},
	{"a wait for work that a rank submitted before it left continues", testWaitAfterPeerLeft},
	{"a ticket that all ranks have submitted is not withdrawn", testCommonTicketIsKept},
	{"a wait for a ticket that a peer has withdrawn returns a DeadlockError", testWithdrawnTicket},
	{"ranks can close in any order", testCloseOrder},
}

func testClosedPlane(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p := g.planes[0]
	for range 2 {
		must(t, p.Close())
	}

	<-p.Failed()
	checkError(t, "Cause", p.Cause(), driver.ErrClosed)
	for name, wait := range waitFunctions {
		checkError(t, name, wait(p), driver.ErrClosed)
	}

	_, err := p.Exchange(g.ctx, driver.LaneFault, nil)
	checkError(t, "an exchange of fault reports", err, driver.ErrClosed)
	const firstTicket = 1
	checkError(t, "Diagnose", p.Diagnose(newEndlessWait(firstTicket), time.Now()), driver.ErrClosed)
	if !p.PeerFailed() {
		t.Error("PeerFailed = false for a closed plane, want true")
	}

	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit of a closed plane returned ticket %d, want none", ticket)
	}

	lateFault := errors.New("a fault after Close")
	checkError(t, "Fail", p.Fail(lateFault), lateFault)
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
	p.Submit() // ticket 1
	peer.Submit()
	lastOfPeer := peer.Submit() // ticket 2
	must(t, peer.Close())
	waitForUnsubmitted := newEndlessWait(lastOfPeer + 1)
	for p.Diagnose(waitForUnsubmitted, time.Now()) == nil { // the peer has not left yet
		runtime.Gosched()
	}

	if ticket, ok := p.TrySubmit(); ticket != lastOfPeer || !ok {
		t.Errorf("TrySubmit = %d, %v; want %d, true", ticket, ok, lastOfPeer)
	}

	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit returned ticket %d, which the peer has not submitted", ticket)
	}

	if p.PeerFailed() {
		t.Error("PeerFailed = true after a peer has left, want false")
	}

	must(t, checkOpen(p))
}

func testWaitAfterPeerLeft(t *testing.T, join Join) {
	g := newGroup(t, join, 2, hangTimeout)
	p, peer := g.planes[0], g.planes[1]
	peer.Submit()
	must(t, peer.Close())
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	const manyPolls = 5000 // Await looks for faults between them
	polls := 0
	wait := newWait(p.Submit(), func() bool {
		polls++
		if polls == manyPolls {
			cancel()
		}

		return false
	})
	checkError(t, "the wait", p.Await(ctx, wait), context.Canceled)
	must(t, checkOpen(p))
}

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
	peer.Submit() // ticket 1
	completedWork := newWait(p.Submit(), func() bool { return true })
	must(t, p.Await(g.ctx, completedWork))
	// After an exchange, the ranks know that both have submitted ticket 1.
	g.mustRunOnEach(t, func(_ int, p control.Plane) error {
		_, err := p.Exchange(g.ctx, driver.LaneControl, nil)
		return err
	})
	peer.Submit() // ticket 2
	if !peer.Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}

	if ticket := peer.Submit(); ticket == noTicket {
		t.Error("Submit after Withdraw returned no ticket")
	}

	must(t, peer.Close())
	withdrawnTicket := p.Submit()
	err := p.Await(g.ctx, newEndlessWait(withdrawnTicket))
	checkDeadlockAbout(t, err, g.worldRank(1))
}

func testCloseOrder(t *testing.T, join Join) {
	const rankCount = 3
	for first := range rankCount {
		g := newGroup(t, join, rankCount, hangTimeout)
		g.mustRunOnEach(t, func(_ int, p control.Plane) error {
			return p.Compare(p.Submit(), &barrierCall)
		})
		for i := range rankCount {
			rank := (first + i) % rankCount
			must(t, g.planes[rank].Close())
		}
	}
}
