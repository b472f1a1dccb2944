package drivertest

import (
	"errors"
	"testing"

	"symmem/driver"
)

// A stream fails if one of its collectives fails, or when it reaches work that Stream.Fail queued.
// It then skips its work until Synchronize returns the error.
//
// r.blockStream(s) returns a gate, which holds up stream s until gate.open is called.

var failureRequirements = []requirement{
	{"a failed stream skips its work until Synchronize", testSkipped},
	{"an event after a failure returns the stream's error to every caller", testEventFails},
	{"Wait makes its stream fail with the earlier work", testWaitFails},
	{"a skipped collective makes its group fail with a PriorError", testSkippedCollective},
	{"a stream fails if a failed group refuses its collective", testRefusedCollective},
	{"a failure in a capture makes every launch of the graph fail", testCapturedFailure},
	{
		"if a failed group refuses a graph's collective, the graph's events carry the error",
		testRefusedGraph,
	},
	{"launching a graph does not wait for events in the graph", testLaunchDoesNotWait},
}

var errOnPurpose = errors.New("a failure on purpose")

// newFailingStream returns a stream that fails when the gate is opened.
func newFailingStream(r *rank) (driver.Stream, *streamGate) {
	s := r.newStream()
	gate := r.blockStream(s)
	s.Fail(errOnPurpose)
	return s, gate
}

func testSkipped(t *testing.T, h Harness) {
	r := openRank(t, h)
	s, gate := newFailingStream(r)
	const bytes = 64
	b := r.newBuffer(bytes)
	hasRun := false
	const zeroed, skipped, final = 0, 1, 2
	must(t, s.Host(func() { hasRun = true }))
	must(t, s.Fill(b.addressAt(0), skipped, bytes))
	gate.open()
	wantError(t, "synchronizing", s.Synchronize(r.world.ctx), errOnPurpose)
	must(t, s.Synchronize(r.world.ctx)) // the error is returned only once
	if hasRun {
		t.Error("the stream ran work after its failure")
	}

	r.expectFilled(b.addressAt(0), zeroed, bytes)
	must(t, s.Fill(b.addressAt(0), final, bytes))
	must(t, s.Synchronize(r.world.ctx))
	r.expectFilled(b.addressAt(0), final, bytes)
}

// Unlike a stream, an event returns its error until it is recorded again.
func testEventFails(t *testing.T, h Harness) {
	r := openRank(t, h)
	s, gate := newFailingStream(r)
	e := r.newEvent()
	must(t, s.Record(e))
	gate.open()
	for range 2 {
		wantError(t, "synchronizing the event", e.Synchronize(r.world.ctx), errOnPurpose)
	}

	wantError(t, "synchronizing the stream", s.Synchronize(r.world.ctx), errOnPurpose)
	wantError(t, "synchronizing the event again", e.Synchronize(r.world.ctx), errOnPurpose)
	must(t, s.Record(e))
	must(t, e.Synchronize(r.world.ctx))
}

// Wait makes its stream fail with the event's error, and WaitIgnoringErrors does not.
func testWaitFails(t *testing.T, h Harness) {
	r := openRank(t, h)
	for _, failsBeforeWait := range []bool{false, true} {
		s, gate := newFailingStream(r)
		waitStream, ignoringStream := r.newStream(), r.newStream()
		e := r.newEvent()
		must(t, s.Record(e))
		letFail := func() {
			gate.open()
			wantError(t, "synchronizing", s.Synchronize(r.world.ctx), errOnPurpose)
		}
		if failsBeforeWait {
			letFail()
		}

		must(t, waitStream.Wait(e))
		must(t, ignoringStream.WaitIgnoringErrors(e))
		if !failsBeforeWait {
			letFail()
		}

		wantError(t, "the waiting stream", waitStream.Synchronize(r.world.ctx), errOnPurpose)
		must(t, ignoringStream.Synchronize(r.world.ctx))
	}
}

// The failed stream of rank 0 skips a barrier in which rank 1 waits, so the group fails on both.
func testSkippedCollective(t *testing.T, h Harness) {
	const owner = worldGroup // rank.connect sets GroupConfig.Owner to the ID
	w := newWorld(t, h, 2, options{ignoreCloseErrors: true})
	w.onEachRank(func(r *rank) {
		if r.number == 0 {
			r.stream.Fail(errOnPurpose)
		}

		err := r.launchAndWait(r.group, r.stream, barrier)
		cause := r.group.Cause()
		if faultOwner(cause) != owner {
			r.failf("got cause %v, want a Fault with owner %s", cause, owner)
		}

		if r.number == 0 {
			checkSkippingRank(r, err)
			return
		}

		if !errors.Is(err, driver.ErrFault) {
			r.failf("got %v from a barrier that rank 0 skipped, want ErrFault", err)
		}

		if faultOwner(err) != owner {
			r.failf("got %v from the stream, want a Fault with owner %s", err, owner)
		}
	})
}

// checkSkippingRank checks the errors of the rank whose stream has skipped a barrier.
func checkSkippingRank(r *rank, streamErr error) {
	if !errors.Is(streamErr, errOnPurpose) {
		r.failf("got %v from the stream, want %v", streamErr, errOnPurpose)
	}

	cause := r.group.Cause()
	var prior *driver.PriorError
	if !errors.As(cause, &prior) || prior.Rank != r.number {
		r.failf("got cause %v, want a PriorError from rank %d", cause, r.number)
	}
}

// faultOwner returns the owner of the Fault in err, or nil if err contains none.
func faultOwner(err error) any {
	var fault *driver.Fault
	if !errors.As(err, &fault) {
		return nil
	}

	return fault.Owner
}

func testRefusedCollective(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{ignoreCloseErrors: true})
	r := w.ranks[0]
	r.group.Abort(nil)
	wantError(t, "launching", r.queueCall(r.group, r.stream, barrier), driver.ErrAborted)
	must(t, r.stream.Host(func() { t.Error("the stream ran work after the refused collective") }))
	wantError(t, "synchronizing", r.stream.Synchronize(w.ctx), driver.ErrAborted)
	must(t, r.stream.Synchronize(w.ctx))
}

func testCapturedFailure(t *testing.T, h Harness) {
	r := openRank(t, h)
	g := r.capture(func() { r.stream.Fail(errOnPurpose) })
	must(t, r.stream.Synchronize(r.world.ctx)) // the captured failure must not take effect
	for range 2 {
		must(t, g.Launch(r.stream))
		wantError(t, "synchronizing", r.stream.Synchronize(r.world.ctx), errOnPurpose)
	}
}

func testRefusedGraph(t *testing.T, h Harness) {
	w := newWorld(t, h, 1, options{ignoreCloseErrors: true})
	r := w.ranks[0]
	e := r.newEvent()
	g := r.capture(func() {
		must(t, r.queueCall(r.group, r.stream, barrier))
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

func testLaunchDoesNotWait(t *testing.T, h Harness) {
	r := openRank(t, h)
	busy := r.newStream()
	e := r.newEvent()
	gate := r.blockStream(busy)
	must(t, busy.Record(e))
	hasRun := make(chan struct{})
	g := r.capture(func() {
		must(t, r.stream.Wait(e))
		must(t, r.stream.Host(func() { close(hasRun) }))
	})
	must(t, g.Launch(r.stream)) // must return while the event's stream is blocked
	select {
	case <-hasRun:
		t.Error("the stream ran work before the event it must wait for")
	default:
	}

	gate.open()
	must(t, r.stream.Synchronize(r.world.ctx))
	<-hasRun
}
