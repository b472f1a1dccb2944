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

var awaitContracts = []contract{
	{"work that has ended is not waited for", proveAwaitEnded},
	{"a wait ends with its work", proveAwaitEnds},
	{"a wait ends with its context, and the plane stays open", proveAwaitCancelled},
	{"work that all ranks have submitted may take longer than the timeout", proveLongWork},
	{"work that needs no other rank waits for none", proveOwnWork},
	{"Diagnose returns at once, and does not fail the plane", proveDiagnose},
	{"work that a peer had submitted before it failed may still end", proveGrace},
	{"a reason that this rank knows replaces the fault of a peer", proveWhy},
}

func proveAwaitEnded(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	ended := never(w.planes[0].Submit())
	ended.Done = func() bool { return true }
	must(t, w.planes[0].Await(ctx, ended))
}

// proveAwaitEnds lets work end after enough polls that the wait sleeps between them.
func proveAwaitEnds(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	w.each(t, func(_ int, p control.Plane) error {
		for _, looks := range []int{1, 100, 5000} {
			wait := never(p.Submit())
			wait.Done = func() bool { looks--; return looks <= 0 }
			if err := p.Await(w.ctx, wait); err != nil {
				return err
			}
		}
		return wantOpen(p)
	})
}

func proveAwaitCancelled(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(w.ctx)
	cancel(cause)
	past, stop := context.WithDeadline(w.ctx, time.Now())
	defer stop()
	p := w.planes[0]
	wantError(t, "the cancelled wait", p.Await(ctx, never(p.Submit())), cause)
	wantError(t, "the late wait", p.Await(past, never(1)), context.DeadlineExceeded)
	w.planes[1].Submit()
	w.each(t, func(i int, p control.Plane) error {
		return errors.Join(w.swap(i, driver.LaneControl, 1, []int{3, 4}), wantOpen(p))
	})
}

func proveLongWork(t *testing.T, join Join) {
	w := newWorld(t, join, 2, short)
	w.each(t, func(_ int, p control.Plane) error {
		wait := never(p.Submit())
		begin := time.Now()
		wait.Done = func() bool { return time.Since(begin) > 3*short }
		if err := p.Await(w.ctx, wait); err != nil {
			return err
		}
		return wantOpen(p)
	})
}

// proveOwnWork waits for work that needs no peer until after the peer has failed.
func proveOwnWork(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ended := atomic.Bool{}
	own := never(0)
	own.Done = ended.Load
	result := make(chan error, 1)
	go func() { result <- w.planes[0].Await(w.ctx, own) }()
	w.planes[1].Abort(nil)
	awaitPeerFailed(w.planes[0])
	if ticket, ok := w.planes[0].TrySubmit(); ok {
		t.Errorf("TrySubmit after a peer's fault returned ticket %d", ticket)
	}
	ended.Store(true)
	must(t, <-result)
	must(t, wantOpen(w.planes[0]))
}

// awaitPeerFailed polls a plane until it has detected a peer's fault.
func awaitPeerFailed(p control.Plane) {
	for !p.PeerFailed() {
		// Diagnose lets other goroutines run.
		_ = p.Diagnose(never(0), time.Now())
	}
}

func proveDiagnose(t *testing.T, join Join) {
	w := newWorld(t, join, 2, short)
	p := w.planes[0]
	wait := never(p.Submit())
	must(t, p.Diagnose(wait, time.Now()))
	long := time.Now().Add(-patience)
	missed := p.Diagnose(wait, long)
	if WantAbsence(t, missed, ranksOf(2)[1]) == 0 {
		t.Errorf("got %v, want a TimeoutError", missed)
	}
	must(t, wantOpen(p))
	w.planes[1].Abort(nil)
	awaitPeerFailed(p)
	wantError(t, "after the peer's fault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	must(t, wantOpen(p))
	wait.Done = func() bool { return true }
	must(t, p.Diagnose(wait, long))
	must(t, p.Diagnose(never(0), long))
	cause := errors.New("of our own")
	wantError(t, "what Fail returns", p.Fail(cause), cause)
	wantError(t, "after our own fault", p.Diagnose(never(1), time.Now()), cause)
}

// proveGrace lets a peer fail after it has submitted the awaited ticket.
func proveGrace(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p := w.planes[0]
	w.planes[1].Submit()
	w.planes[1].Abort(nil)
	awaitPeerFailed(p)
	wait := never(p.Submit())
	must(t, p.Diagnose(wait, time.Now()))
	begin := time.Now()
	wait.Done = func() bool { return time.Since(begin) > control.Grace/5 }
	must(t, p.Await(w.ctx, wait))
	wantError(t, "work that never ends", p.Await(w.ctx, never(1)), driver.ErrFault)
	wantError(t, "the cause", p.Cause(), driver.ErrFault)
}

// proveWhy waits, after a peer has failed, for work whose Why returns a better reason.
func proveWhy(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p := w.planes[0]
	wait, better := never(p.Submit()), errors.New("what a kernel has reported")
	wait.Why = func() error { return nil }
	w.planes[1].Abort(nil)
	awaitPeerFailed(p)
	wantError(t, "without Why", p.Diagnose(wait, time.Now()), driver.ErrFault)
	wait.Why = func() error { return better }
	wantError(t, "Diagnose", p.Diagnose(wait, time.Now()), better)
	wantError(t, "the wait", p.Await(w.ctx, wait), better)
	wantError(t, "the cause", p.Cause(), better)
}
