package drivertest

import (
	"context"
	"slices"
	"testing"

	"symmem/driver"
)

var eventRequirements = []requirement{
	{"an event that has never been recorded is done", testNeverRecorded},
	{"after each Record, an event is done when its stream reaches it", testEventDone},
	{"Wait waits for the last Record before the call", testWaitUsesLastRecord},
	{"Synchronize returns when its context is canceled", testEventContext},
	{"two streams can alternately wait for each other", testAlternatingWaits},
	{"a failed Record does not change the event", testFailedRecord},
}

func testNeverRecorded(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e := r.newEvent()
	if !e.Done() {
		t.Error("Done() = false for an event that was never recorded, want true")
	}
	must(t, e.Synchronize(r.world.ctx))
	must(t, r.stream.Wait(e))
	must(t, r.stream.Synchronize(r.world.ctx))
}

func testEventDone(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
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
		if !e.Done() || !hasRun {
			t.Errorf("after Synchronize: event done = %v, earlier work done = %v; want true, true",
				e.Done(), hasRun)
		}
	}
	must(t, r.stream.Record(e))
	must(t, r.stream.Synchronize(r.world.ctx))
	if !e.Done() {
		t.Error("the event is not done although the stream is idle")
	}
}

func testWaitUsesLastRecord(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e, other := r.newEvent(), r.newStream()
	first := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	must(t, other.Wait(e))
	ran := make(chan struct{})
	must(t, other.Host(func() { close(ran) }))
	second := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	select {
	case <-ran:
		t.Error("the other stream did not wait for the event")
	default:
	}
	first.open()
	must(t, other.Synchronize(r.world.ctx))
	<-ran
	if e.Done() {
		t.Error("the event is done before its stream reached the second Record")
	}
	second.open()
	must(t, e.Synchronize(r.world.ctx))
}

func testEventContext(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e := r.newEvent()
	gate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	ctx, cancel := context.WithCancel(r.world.ctx)
	cancel()
	wantError(t, "synchronizing", e.Synchronize(ctx), context.Canceled)
	gate.open()
	must(t, e.Synchronize(r.world.ctx))
}

func testAlternatingWaits(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	streams := []driver.Stream{r.stream, r.newStream()}
	turn := r.newEvent()
	var order []int
	const n = 500
	for i := range n {
		s := streams[i%2]
		must(t, s.Wait(turn))
		must(t, s.Host(func() { order = append(order, i) }))
		must(t, s.Record(turn))
	}
	for _, s := range streams {
		must(t, s.Synchronize(r.world.ctx))
	}
	if !slices.Equal(order, firstNumbers(n)) {
		t.Errorf("functions ran in the order %v, want the order in which they were queued", order)
	}
}

func testFailedRecord(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e, other := r.newEvent(), r.newStream()
	must(t, other.Close())
	wantError(t, "recording", other.Record(e), driver.ErrClosed)
	if !e.Done() {
		t.Error("the event is not done although Record failed")
	}
}
