package drivertest

import (
	"errors"
	"testing"

	"symmem/driver"
)

var failureContracts = []contract{
	{"a failed stream drops its work until Synchronize", proveDropped},
	{"a point behind a failure returns the error, repeatedly", provePointFails},
	{"Wait propagates a failure, WaitOnly does not", proveWaitFails},
	{"a dropped collective fails its group with a PriorError", proveDroppedCollective},
	{"a collective refused by a failed group fails the stream", proveRefusedCollective},
	{"a failure in a capture fails each launch", proveCapturedFailure},
	{"a graph whose collective is refused records its events, with the error", proveRefusedGraph},
	{"a graph that waits does not keep its launch", proveLaunchDoesNotWait},
}

// errPurpose fails streams on purpose.
var errPurpose = errors.New("a failure on purpose")

// broken returns a blocked stream that fails once the gate is opened.
func broken(r *rank) (driver.Stream, *gate) {
	s := r.newStream()
	g := r.hold(s)
	s.Fail(errPurpose)
	return s, g
}

func proveDropped(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	s, g := broken(r)
	b := r.newBuffer(64)
	ran := false
	must(t, s.Host(func() { ran = true }))
	must(t, s.Fill(b.at(0), 1, 64))
	g.open()
	wantError(t, "synchronizing", s.Synchronize(r.world.ctx), errPurpose)
	must(t, s.Synchronize(r.world.ctx))
	if ran {
		t.Error("work behind the failure was done")
	}
	r.expectAll(b.at(0), 0, 64)
	must(t, s.Fill(b.at(0), 2, 64))
	must(t, s.Synchronize(r.world.ctx))
	r.expectAll(b.at(0), 2, 64)
}

func provePointFails(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	s, g := broken(r)
	e := r.newEvent()
	must(t, s.Record(e))
	g.open()
	for range 2 {
		wantError(t, "synchronizing", e.Synchronize(r.world.ctx), errPurpose)
	}
	wantError(t, "synchronizing the stream", s.Synchronize(r.world.ctx), errPurpose)
	wantError(t, "synchronizing", e.Synchronize(r.world.ctx), errPurpose)
	must(t, s.Record(e))
	must(t, e.Synchronize(r.world.ctx))
}

func proveWaitFails(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	for _, late := range []bool{false, true} {
		s, g := broken(r)
		e, wait, only := r.newEvent(), r.newStream(), r.newStream()
		must(t, s.Record(e))
		finish := func() {
			g.open()
			wantError(t, "synchronizing", s.Synchronize(r.world.ctx), errPurpose)
		}
		if late {
			finish()
		}
		must(t, wait.Wait(e))
		must(t, only.WaitOnly(e))
		if !late {
			finish()
		}
		wantError(t, "waiting", wait.Synchronize(r.world.ctx), errPurpose)
		must(t, only.Synchronize(r.world.ctx))
	}
}

func proveDroppedCollective(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{faulty: true})
	w.each(func(r *rank) {
		s := r.stream
		if r.number == 0 {
			s.Fail(errPurpose)
		}
		err := r.launch(r.group, s, driver.Call{Operation: driver.Barrier})
		var prior *driver.PriorError
		switch {
		case r.number == 1 && !errors.Is(err, driver.ErrFault):
			r.failf("a barrier ended without the rank that dropped it")
		case r.number == 0 && !errors.Is(err, errPurpose):
			r.failf("the stream does not return its first error")
		case r.number == 1 && owner(err) != "world":
			r.failf("the stream's error does not name the owner of its group: %v", err)
		case owner(r.group.Cause()) != "world":
			r.failf("the cause does not name the owner of its group: %v", r.group.Cause())
		case r.number == 0 && (!errors.As(r.group.Cause(), &prior) || prior.Rank != 0):
			r.failf("the group has not failed with a PriorError of rank 0")
		}
	})
}

// owner returns the owner that the fault of a group carries, or nil.
func owner(err error) any {
	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}
	return fault.Owner
}

func proveRefusedCollective(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{faulty: true})
	r := w.ranks[0]
	r.group.Abort(nil)
	wantError(t, "launching", r.queue(r.group, r.stream, driver.Call{Operation: driver.Barrier}),
		driver.ErrAborted)
	must(t, r.stream.Host(func() { t.Error("work behind the collective was done") }))
	wantError(t, "synchronizing", r.stream.Synchronize(w.ctx), driver.ErrAborted)
	must(t, r.stream.Synchronize(w.ctx))
}

func proveCapturedFailure(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	g := r.captured(func() { r.stream.Fail(errPurpose) })
	must(t, r.stream.Synchronize(r.world.ctx))
	for range 2 {
		must(t, g.Launch(r.stream))
		wantError(t, "synchronizing", r.stream.Synchronize(r.world.ctx), errPurpose)
	}
}

// proveRefusedGraph replays a graph once before its group fails. The event must not keep the point
// of that replay.
func proveRefusedGraph(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{faulty: true})
	r := w.ranks[0]
	e := r.newEvent()
	g := r.captured(func() {
		must(t, r.queue(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
		must(t, r.stream.Record(e))
	})
	must(t, g.Launch(r.stream))
	must(t, e.Synchronize(w.ctx))
	must(t, r.stream.Synchronize(w.ctx))
	r.group.Abort(nil)
	wantError(t, "launching", g.Launch(r.stream), driver.ErrAborted)
	wantError(t, "synchronizing the event", e.Synchronize(w.ctx), driver.ErrAborted)
	wantError(t, "synchronizing", r.stream.Synchronize(w.ctx), driver.ErrAborted)
}

func proveLaunchDoesNotWait(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	busy, e := r.newStream(), r.newEvent()
	gate := r.hold(busy)
	must(t, busy.Record(e))
	ran := make(chan struct{})
	g := r.captured(func() {
		must(t, r.stream.Wait(e))
		must(t, r.stream.Host(func() { close(ran) }))
	})
	must(t, g.Launch(r.stream)) // while the event's stream is blocked
	select {
	case <-ran:
		t.Error("work behind the wait has run")
	default:
	}
	gate.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	<-ran
}
