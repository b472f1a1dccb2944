package drivertest

import (
	"context"
	"slices"
	"testing"

	"symmem/driver"
)

// An event marks a point in the work of a stream. For example, a stream has work A, a Record of the
// event, and work B. The event is done when A has run. Another stream can wait for it.
//
// newWorld opens a device with a stream, r.stream. r.blockStream queues a gate on a stream. The
// stream stops there until the test opens the gate, so the test decides when the event is done.

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

// testEventDone records an event after a gate and a function. The event must not be done before the
// gate is opened. Then it must wait for the function.
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

// testWaitUsesLastRecord records an event twice, with a gate before each Record. The other stream
// calls Wait between the two, so only the first gate blocks it.
func testWaitUsesLastRecord(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e := r.newEvent()
	other := r.newStream()
	firstGate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	must(t, other.Wait(e))
	hasRun := make(chan struct{})
	must(t, other.Host(func() { close(hasRun) }))
	secondGate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	select {
	case <-hasRun:
		t.Error("the other stream did not wait for the event")
	default: // the other stream waits
	}

	firstGate.open()
	must(t, other.Synchronize(r.world.ctx))
	<-hasRun
	if e.Done() {
		t.Error("the event is done before its stream reached the second Record")
	}

	secondGate.open()
	must(t, e.Synchronize(r.world.ctx))
}

// testEventContext waits for an event of a blocked stream with a canceled context.
func testEventContext(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e := r.newEvent()
	gate := r.blockStream(r.stream)
	must(t, r.stream.Record(e))
	canceled, cancel := context.WithCancel(r.world.ctx)
	cancel()
	wantError(t, "synchronizing the event", e.Synchronize(canceled), context.Canceled)
	gate.open()
	must(t, e.Synchronize(r.world.ctx))
}

// testAlternatingWaits queues functions on two streams in turn. Each waits for the one before it,
// so all run in the order of the calls.
func testAlternatingWaits(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	streams := []driver.Stream{r.stream, r.newStream()}
	previousDone := r.newEvent() // recorded after each function
	var order []int
	const callCount = 500
	for i := range callCount {
		s := streams[i%2]
		must(t, s.Wait(previousDone))
		must(t, s.Host(func() { order = append(order, i) }))
		must(t, s.Record(previousDone))
	}

	for _, s := range streams {
		must(t, s.Synchronize(r.world.ctx))
	}

	if !slices.Equal(order, firstNumbers(callCount)) {
		t.Errorf("functions ran in the order %v, want the order in which they were queued", order)
	}
}

func testFailedRecord(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{noGroup: true}).ranks[0]
	e := r.newEvent()
	other := r.newStream()
	must(t, other.Close())
	wantError(t, "recording on a closed stream", other.Record(e), driver.ErrClosed)
	if !e.Done() {
		t.Error("a failed Record made the event pending")
	}
}
