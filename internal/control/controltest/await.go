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
	{"Await returns immediately if the work has completed", testAwaitEnded},
	{"a wait ends when its work completes", testAwaitEnds},
	{"canceling its context ends a wait, and the plane stays open", testAwaitCancelled},
	{"work that all ranks have submitted may take longer than the timeout", testLongWork},
	{"a peer's fault does not end a wait for work that needs no other rank", testOwnWork},
	{"Diagnose returns immediately and does not fail the plane", testDiagnose},
	{"work that a peer submitted before it failed may still complete", testGrace},
	{"the result of Why replaces the fault of a peer", testWhy},
}

func testAwaitEnded(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	ended := unfinishedWait(w.planes[0].Submit())
	ended.Done = func() bool { return true }
	must(t, w.planes[0].Await(ctx, ended))
}

// testAwaitEnds waits for work that completes after up to 5000 polls, so that the longest wait
// sleeps between polls.
func testAwaitEnds(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	w.each(t, func(_ int, p control.Plane) error {
		for _, polls := range []int{1, 100, 5000} {
			wait := unfinishedWait(p.Submit())
			wait.Done = func() bool { polls--; return polls <= 0 }
			if err := p.Await(w.ctx, wait); err != nil {
				return err
			}
		}
		return checkOpen(p)
	})
}

func testAwaitCancelled(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	cause := errors.New("canceled by the test")
	ctx, cancel := context.WithCancelCause(w.ctx)
	cancel(cause)
	expired, stop := context.WithDeadline(w.ctx, time.Now())
	defer stop()
	p := w.planes[0]
	checkError(t, "the canceled wait", p.Await(ctx, unfinishedWait(p.Submit())), cause)
	err := p.Await(expired, unfinishedWait(1))
	checkError(t, "a wait whose deadline has passed", err, context.DeadlineExceeded)
	w.planes[1].Submit()
	w.each(t, func(i int, p control.Plane) error {
		return errors.Join(w.exchangeAndCheck(i, driver.LaneControl, 1, []int{3, 4}), checkOpen(p))
	})
}

func testLongWork(t *testing.T, join Join) {
	w := newWorld(t, join, 2, shortTimeout)
	w.each(t, func(_ int, p control.Plane) error {
		wait := unfinishedWait(p.Submit())
		begin := time.Now()
		wait.Done = func() bool { return time.Since(begin) > 3*shortTimeout }
		if err := p.Await(w.ctx, wait); err != nil {
			return err
		}
		return checkOpen(p)
	})
}

func testOwnWork(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ended := atomic.Bool{}
	own := unfinishedWait(0)
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
	must(t, checkOpen(w.planes[0]))
}

func awaitPeerFailed(p control.Plane) {
	for !p.PeerFailed() {
		_ = p.Diagnose(unfinishedWait(0), time.Now()) // lets other goroutines run
	}
}

func testDiagnose(t *testing.T, join Join) {
	w := newWorld(t, join, 2, shortTimeout)
	p := w.planes[0]
	wait := unfinishedWait(p.Submit())
	must(t, p.Diagnose(wait, time.Now()))
	longAgo := time.Now().Add(-patience)
	late := p.Diagnose(wait, longAgo)
	if WantAbsence(t, late, ranksOf(2)[1]) == 0 {
		t.Errorf("got %v, want a TimeoutError", late)
	}
	must(t, checkOpen(p))
	w.planes[1].Abort(nil)
	awaitPeerFailed(p)
	checkError(t, "after the peer's fault", p.Diagnose(wait, time.Now()), driver.ErrFault)
	must(t, checkOpen(p))
	wait.Done = func() bool { return true }
	must(t, p.Diagnose(wait, longAgo))
	must(t, p.Diagnose(unfinishedWait(0), longAgo))
	cause := errors.New("a local fault")
	checkError(t, "Fail", p.Fail(cause), cause)
	checkError(t, "after the local fault", p.Diagnose(unfinishedWait(1), time.Now()), cause)
}

func testGrace(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p := w.planes[0]
	w.planes[1].Submit()
	w.planes[1].Abort(nil)
	awaitPeerFailed(p)
	wait := unfinishedWait(p.Submit())
	must(t, p.Diagnose(wait, time.Now()))
	begin := time.Now()
	wait.Done = func() bool { return time.Since(begin) > control.Grace/5 }
	must(t, p.Await(w.ctx, wait))
	checkError(t, "endless work", p.Await(w.ctx, unfinishedWait(1)), driver.ErrFault)
	checkError(t, "the cause", p.Cause(), driver.ErrFault)
}

func testWhy(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	p := w.planes[0]
	wait, better := unfinishedWait(p.Submit()), errors.New("a fault that a kernel has reported")
	wait.Why = func() error { return nil }
	w.planes[1].Abort(nil)
	awaitPeerFailed(p)
	checkError(t, "without Why", p.Diagnose(wait, time.Now()), driver.ErrFault)
	wait.Why = func() error { return better }
	checkError(t, "Diagnose", p.Diagnose(wait, time.Now()), better)
	checkError(t, "the wait", p.Await(w.ctx, wait), better)
	checkError(t, "the cause", p.Cause(), better)
}
