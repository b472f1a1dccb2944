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
	{"a closed plane returns ErrClosed", proveClosed},
	{"closing ends the waits of the rank", proveCloseEndsWaits},
	{"no ticket is handed out that a rank did not have when it left", proveLeftWithoutTicket},
	{"a rank that has left after it had submitted all is not missed", proveLeftAfterwards},
	{"a rank that left and withdrew its submissions is missing", proveWithdrawn},
	{"ranks close in any order, again and again", proveCloseOrder},
}

func proveClosed(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p := w.planes[0]
	must(t, p.Close())
	must(t, p.Close())
	<-p.Failed()
	wantError(t, "the cause", p.Cause(), driver.ErrClosed)
	for name, wait := range waits {
		wantError(t, name, wait(p), driver.ErrClosed)
	}
	_, err := p.Exchange(w.ctx, driver.LaneFault, nil)
	wantError(t, "the fault lane", err, driver.ErrClosed)
	wantError(t, "Diagnose", p.Diagnose(never(1), time.Now()), driver.ErrClosed)
	if !p.PeerFailed() {
		t.Error("a closed plane does not report PeerFailed")
	}
	if ticket, ok := p.TrySubmit(); ok {
		t.Errorf("TrySubmit of a closed plane returned ticket %d", ticket)
	}
	cause := errors.New("late")
	wantError(t, "Fail", p.Fail(cause), cause)
	p.Abort(nil)
	wantError(t, "the cause in the end", p.Cause(), driver.ErrClosed)
}

func proveLeftWithoutTicket(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	here, there := w.planes[0], w.planes[1]
	here.Submit()
	there.Submit()
	there.Submit()
	must(t, there.Close())
	// Diagnose lets other goroutines run.
	for here.Diagnose(never(3), time.Now()) == nil {
		_ = here.Diagnose(never(0), time.Now())
	}
	if ticket, ok := here.TrySubmit(); ticket != 2 || !ok {
		t.Errorf("got ticket %d, %v, want 2, which the rank that left has, too", ticket, ok)
	}
	if ticket, ok := here.TrySubmit(); ok {
		t.Errorf("got ticket %d, which the rank that left has not", ticket)
	}
	if here.PeerFailed() {
		t.Error("a rank that has left makes the plane report PeerFailed")
	}
	must(t, wantOpen(here))
}

func proveCloseEndsWaits(t *testing.T, join Join) {
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
		wantError(t, name, <-ended, driver.ErrClosed)
	}
}

func proveCloseOrder(t *testing.T, join Join) {
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

// proveWithdrawn has a rank leave after two collectives, of which the other rank submitted only the
// first. The first can end, and the second never can.
func proveWithdrawn(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	here, there := w.planes[0], w.planes[1]
	there.Submit()
	first := never(here.Submit())
	first.Done = func() bool { return true }
	must(t, here.Await(w.ctx, first))
	// After the exchange each rank knows what the other has submitted.
	w.outcomes(func(_ int, p control.Plane) error {
		_, err := p.Exchange(w.ctx, driver.LaneControl, nil)
		return err
	})
	there.Submit()
	if !there.Withdraw() {
		t.Error("a ticket was not taken back that one rank has submitted")
	}
	if late := there.Submit(); late == 0 {
		t.Error("a ticket that is not shown has no number")
	}
	must(t, there.Close())
	wantDeadlock(t, here.Await(w.ctx, never(here.Submit())), ranksOf(2)[1])
}

func proveLeftAfterwards(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	w.planes[1].Submit()
	must(t, w.planes[1].Close())
	p := w.planes[0]
	wait := never(p.Submit())
	ctx, cancel := context.WithCancel(w.ctx)
	looks := 0
	// By then the wait has checked for faults repeatedly.
	wait.Done = func() bool {
		if looks++; looks == 5000 {
			cancel()
		}
		return false
	}
	wantError(t, "the wait", p.Await(ctx, wait), context.Canceled)
	must(t, wantOpen(p))
}
