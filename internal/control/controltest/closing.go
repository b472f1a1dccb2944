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

// A rank leaves a group by closing its plane, its connection to the other ranks. If rank 1 leaves
// after submitting collectives 1 and 2, rank 0 can still wait for their work. A wait for collective
// 3 returns a DeadlockError. The number of a collective is its ticket.
//
// Before it leaves, a rank can withdraw the tickets of collectives that it will not launch.

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
	must(t, p.Close()) // has no effect
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
		runtime.Gosched()
	}

	const possibleTicket = 2 // the peer has submitted it
	if ticket, ok := p.TrySubmit(); ticket != possibleTicket || !ok {
		t.Errorf("TrySubmit = %d, %v; want %d, true", ticket, ok, possibleTicket)
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
	g.planes[1].Submit()
	must(t, g.planes[1].Close())
	p := g.planes[0]
	wait := unfinishedWait(p.Submit())
	ctx, cancel := context.WithCancel(g.ctx)
	defer cancel()
	pollsLeft := 5000 // enough for Await to look for faults several times
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

// The ranks exchange nothing after Submit. On different machines, Withdraw therefore has to ask the
// other ranks for their tickets.
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
	// Make the first ticket known to both ranks, so that it is not withdrawn.
	g.runOnEach(func(_ int, p control.Plane) error {
		_, err := p.Exchange(g.ctx, driver.LaneControl, nil)
		return err
	})
	peer.Submit()
	if !peer.Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}

	if ticket := peer.Submit(); ticket == noTicket {
		t.Error("Submit after Withdraw returned 0, want a ticket")
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
			return p.Compare(p.Submit(), &barrier)
		})
		for i := range rankCount {
			rank := (first + i) % rankCount
			must(t, g.planes[rank].Close())
		}
	}
}
