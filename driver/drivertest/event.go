package drivertest

import (
	"context"
	"slices"
	"testing"

	"symmem/driver"
)

// An event marks a point in a stream's work. If Record(e) follows some work on stream s, event e is
// done when s has run this work. Another stream, or the host, can wait for e.
//
// r.blockStream(s) returns a gate, which holds up stream s until gate.open is called.

var eventRequirements = []requirement{
	{"an event that has never been recorded is done", testNeverRecorded},
	{"after each Record, an event is done when its stream reaches it", testEventDone},
	{"Wait waits for the last Record before the call", testWaitUsesLastRecord},
	{"Synchronize returns when its context is canceled", testEventContext},
	{"two streams can alternately wait for each other", testAlternatingWaits},
	{"a failed Record does not change the event", testFailedRecord},
}

func testNeverRecorded(t *testing.T, h Harness) {
	r := openRank(t, h)
	e := r.newEvent()
	if !e.Done() {
		t.Error("Done() = false for an event that was never recorded, want true")
	}

	must(t, e.Synchronize(r.world.ctx))
	must(t, r.stream.Wait(e))
	must(t, r.stream.Synchronize(r.world.ctx))
}

func testEventDone(t *testing.T, h Harness) {
	r := openRank(t, h)
	e := r.newEvent()
	for range 3 {
		gate := r.blockStream(r.stream)
		hasRun := false
		must(t, r.stream.Host(func() { hasRun = true }))
		must(t, r.stream.Record(e))
		if e.Done() {
			t.Error("the event is done before its stream reached it")
		}

		gate.open()
		must(t, e.Synchronize(r.world.ctx))
		if !e.Done() {
			t.Error("the event is not done after Synchronize")
		}

		if !hasRun {
			t.Error("Synchronize returned before earlier work had run")
		}
	}

	must(t, r.stream.Record(e))
	must(t, r.stream.Synchronize(r.world.ctx))
	if !e.Done() {
		t.Error("the event is not done although the stream is idle")
	}
}

func testWaitUsesLastRecord(t *testing.T, h Harness) {
	r := openRank(t, h)
	e := r.newEvent()
	waiter := r.newStream()
	firstGate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	must(t, waiter.Wait(e))
	hasRun := make(chan struct{})
	must(t, waiter.Host(func() { close(hasRun) }))
	secondGate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	select {
	case <-hasRun:
		t.Error("the waiting stream did not wait for the event")
	default:
	}

	firstGate.open()
	must(t, waiter.Synchronize(r.world.ctx))
	<-hasRun
	if e.Done() {
		t.Error("the event is done before its stream reached the second Record")
	}

	secondGate.open()
	must(t, e.Synchronize(r.world.ctx))
}

func testEventContext(t *testing.T, h Harness) {
	r := openRank(t, h)
	e := r.newEvent()
	gate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	canceled, cancel := context.WithCancel(r.world.ctx)
	cancel()
	wantError(t, "synchronizing the event", e.Synchronize(canceled), context.Canceled)
	gate.open()
	must(t, e.Synchronize(r.world.ctx))
}

// Each function must run after the previous one, which is queued on the other stream.
func testAlternatingWaits(t *testing.T, h Harness) {
	r := openRank(t, h)
	streams := []driver.Stream{r.stream, r.newStream()}
	previous := r.newEvent()
	var order []int
	const callCount = 500
	for i := range callCount {
		s := streams[i%2]
		must(t, s.Wait(previous))
		must(t, s.Host(func() { order = append(order, i) }))
		must(t, s.Record(previous))
	}

	for _, s := range streams {
		must(t, s.Synchronize(r.world.ctx))
	}

	if !slices.Equal(order, numbersBelow(callCount)) {
		t.Errorf("functions ran in the order %v, want the order in which they were queued", order)
	}
}

func testFailedRecord(t *testing.T, h Harness) {
	r := openRank(t, h)
	e := r.newEvent()
	other := r.newStream()
	must(t, other.Close())
	wantError(t, "recording on a closed stream", other.Record(e), driver.ErrClosed)
	if !e.Done() {
		t.Error("a failed Record made the event pending")
	}
}
