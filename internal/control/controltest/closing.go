package controltest

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

var closingContracts = []contract{
	{"a closed plane returns ErrClosed", testClosed},
	{"closing a plane ends the rank's waits", testCloseEndsWaits},
	{"TrySubmit returns no ticket that a rank did not submit before it left", testLeftWithoutTicket},
	{"a rank that submitted all tickets before it left is not missing", testLeftAfterwards},
	{"a rank that left and withdrew its submissions is missing", testWithdrawn},
	{"ranks can close in any order", testCloseOrder},
}

func testClosed(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p := w.planes[0]
	must(t, p.Close())
	must(t, p.Close())
	<-p.Failed()
	checkError(t, "the cause", p.Cause(), driver.ErrClosed)
	for name, wait := range waits {
		checkError(t, name, wait(p), driver.ErrClosed)
	}
	_, err := p.Exchange(w.ctx, driver.LaneFault, nil)
	checkError(t, "the fault lane", err, driver.ErrClosed)
	checkError(t, "Diagnose", p.Diagnose(unfinishedWait(1), time.Now()), driver.ErrClosed)
	if !p.PeerFailed() {
		t.Error("a closed plane does not report PeerFailed")
	}
	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit of a closed plane returned ticket %d", ticket)
	}
	cause := errors.New("late")
	checkError(t, "Fail", p.Fail(cause), cause)
	p.Abort(nil)
	checkError(t, "the cause after Fail and Abort", p.Cause(), driver.ErrClosed)
}

func testLeftWithoutTicket(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p, peer := w.planes[0], w.planes[1]
	p.Submit()
	peer.Submit()
	peer.Submit()
	must(t, peer.Close())
	for p.Diagnose(unfinishedWait(3), time.Now()) == nil {
		_ = p.Diagnose(unfinishedWait(0), time.Now()) // lets other goroutines run
	}
	if ticket, ok := p.TrySubmit(); ticket != 2 || !ok {
		t.Errorf("TrySubmit = %d, %v, want 2, which the peer has submitted", ticket, ok)
	}
	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit returned ticket %d, which the peer has not submitted", ticket)
	}
	if p.PeerFailed() {
		t.Error("PeerFailed = true after a peer has left, want false")
	}
	must(t, checkOpen(p))
}

func testCloseEndsWaits(t *testing.T, join Join) {
	for name, wait := range waits {
		w := newWorld(t, join, 2, patience)
		p := w.planes[0]
		ended := make(chan error, 1)
		entered := make(chan struct{})
		go func() {
			close(entered)
			ended <- wait(p)
		}()
		<-entered
		must(t, p.Close())
		checkError(t, name, <-ended, driver.ErrClosed)
	}
}

func testCloseOrder(t *testing.T, join Join) {
	for first := range 3 {
		w := newWorld(t, join, 3, patience)
		w.each(t, func(_ int, p control.Plane) error {
			return p.Compare(p.Submit(), &driver.Call{Digest: 4})
		})
		for i := range 3 {
			must(t, w.planes[(first+i)%3].Close())
		}
	}
}

// In testWithdrawn, the other rank (peer) submits two collectives, withdraws the second and
// leaves. This rank has submitted only the first, which can complete.
func testWithdrawn(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p, peer := w.planes[0], w.planes[1]
	peer.Submit()
	first := unfinishedWait(p.Submit())
	first.Done = func() bool { return true }
	must(t, p.Await(w.ctx, first))
	// After this exchange, each rank knows which tickets the other has submitted.
	w.outcomes(func(_ int, p control.Plane) error {
		_, err := p.Exchange(w.ctx, driver.LaneControl, nil)
		return err
	})
	peer.Submit()
	if !peer.Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}
	if ticket := peer.Submit(); ticket == 0 {
		t.Error("Submit after Withdraw returned 0")
	}
	must(t, peer.Close())
	checkDeadlock(t, p.Await(w.ctx, unfinishedWait(p.Submit())), ranksOf(2)[1])
}

func testLeftAfterwards(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	w.planes[1].Submit()
	must(t, w.planes[1].Close())
	p := w.planes[0]
	wait := unfinishedWait(p.Submit())
	ctx, cancel := context.WithCancel(w.ctx)
	polls := 0
	// Await checks for faults several times during 5000 polls.
	wait.Done = func() bool {
		if polls++; polls == 5000 {
			cancel()
		}
		return false
	}
	checkError(t, "the wait", p.Await(ctx, wait), context.Canceled)
	must(t, checkOpen(p))
}
