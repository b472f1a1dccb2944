package drivertest

import (
	"errors"
	"testing"

	"symmem/driver"
)

var failureContracts = []contract{
	{"a failed stream skips its work until Synchronize", proveSkipped},
	{"an event after a failure returns the error to every caller", provePointFails},
	{"Wait propagates a failure, WaitOnly does not", proveWaitFails},
	{"a skipped collective fails its group with a PriorError", proveSkippedCollective},
	{"a collective that a failed group refuses fails the stream", proveRefusedCollective},
	{"a failure in a capture fails each launch", proveCapturedFailure},
	{"events of a graph whose collective is refused carry the error", proveRefusedGraph},
	{"launching a graph does not wait for events in the graph", proveLaunchDoesNotWait},
}

var errPurpose = errors.New("a failure on purpose")

// newFailingStream returns a blocked stream that fails when its gate is opened.
func newFailingStream(r *rank) (driver.Stream, *gate) {
	s := r.newStream()
	g := r.block(s)
	s.Fail(errPurpose)
	return s, g
}

func proveSkipped(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	s, g := newFailingStream(r)
	b := r.newBuffer(64)
	ran := false
	must(t, s.Host(func() { ran = true }))
	must(t, s.Fill(b.at(0), 1, 64))
	g.open()
	wantError(t, "synchronizing", s.Synchronize(r.world.ctx), errPurpose)
	must(t, s.Synchronize(r.world.ctx))
	if ran {
		t.Error("work after the failure has run")
	}
	r.expectAll(b.at(0), 0, 64)
	must(t, s.Fill(b.at(0), 2, 64))
	must(t, s.Synchronize(r.world.ctx))
	r.expectAll(b.at(0), 2, 64)
}

func provePointFails(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	s, g := newFailingStream(r)
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
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	for _, late := range []bool{false, true} {
		s, g := newFailingStream(r)
		e, waiter, onlyWaiter := r.newEvent(), r.newStream(), r.newStream()
		must(t, s.Record(e))
		finish := func() {
			g.open()
			wantError(t, "synchronizing", s.Synchronize(r.world.ctx), errPurpose)
		}
		if late {
			finish()
		}
		must(t, waiter.Wait(e))
		must(t, onlyWaiter.WaitOnly(e))
		if !late {
			finish()
		}
		wantError(t, "waiting", waiter.Synchronize(r.world.ctx), errPurpose)
		must(t, onlyWaiter.Synchronize(r.world.ctx))
	}
}

func proveSkippedCollective(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{expectFaults: true})
	w.each(func(r *rank) {
		s := r.stream
		if r.number == 0 {
			s.Fail(errPurpose)
		}
		err := r.launch(r.group, s, driver.Call{Operation: driver.Barrier})
		var prior *driver.PriorError
		switch {
		case r.number == 1 && !errors.Is(err, driver.ErrFault):
			r.failf("got %v from a barrier that rank 0 skipped, want ErrFault", err)
		case r.number == 0 && !errors.Is(err, errPurpose):
			r.failf("got %v from the stream, want its first error", err)
		case r.number == 1 && faultOwner(err) != "world":
			r.failf("the stream's error does not name the group's owner: %v", err)
		case faultOwner(r.group.Cause()) != "world":
			r.failf("the cause does not name the group's owner: %v", r.group.Cause())
		case r.number == 0 && (!errors.As(r.group.Cause(), &prior) || prior.Rank != 0):
			r.failf("got cause %v, want a PriorError of rank 0", r.group.Cause())
		}
	})
}

// faultOwner returns the owner in a group's fault, or nil if there is none.
func faultOwner(err error) any {
	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}
	return fault.Owner
}

func proveRefusedCollective(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{expectFaults: true})
	r := w.ranks[0]
	r.group.Abort(nil)
	wantError(t, "launching", r.queue(r.group, r.stream, driver.Call{Operation: driver.Barrier}),
		driver.ErrAborted)
	must(t, r.stream.Host(func() { t.Error("work after the collective has run") }))
	wantError(t, "synchronizing", r.stream.Synchronize(w.ctx), driver.ErrAborted)
	must(t, r.stream.Synchronize(w.ctx))
}

func proveCapturedFailure(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	g := r.capture(func() { r.stream.Fail(errPurpose) })
	must(t, r.stream.Synchronize(r.world.ctx))
	for range 2 {
		must(t, g.Launch(r.stream))
		wantError(t, "synchronizing", r.stream.Synchronize(r.world.ctx), errPurpose)
	}
}

// proveRefusedGraph replays a graph before and after its group fails. After the failure, the event
// must not refer to the first replay.
func proveRefusedGraph(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{expectFaults: true})
	r := w.ranks[0]
	e := r.newEvent()
	g := r.capture(func() {
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
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	busy, e := r.newStream(), r.newEvent()
	gate := r.block(busy)
	must(t, busy.Record(e))
	ran := make(chan struct{})
	g := r.capture(func() {
		must(t, r.stream.Wait(e))
		must(t, r.stream.Host(func() { close(ran) }))
	})
	must(t, g.Launch(r.stream)) // the event's stream is blocked now
	select {
	case <-ran:
		t.Error("work after the wait has run")
	default:
	}
	gate.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	<-ran
}
