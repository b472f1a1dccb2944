package drivertest

import (
	"context"
	"slices"
	"testing"

	"symmem/driver"
)

var eventContracts = []contract{
	{"an event that was never recorded is done", proveNeverRecorded},
	{"an event is done when its stream gets there, each time it is recorded", proveEventDone},
	{"a stream waits for the point that the event marks when it waits", proveEventPoint},
	{"Synchronize ends with its context", proveEventContext},
	{"two streams can hand work to and fro", provePingPong},
	{"a Record that fails leaves the event as it was", proveFailedRecord},
}

func proveNeverRecorded(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	e := r.newEvent()
	if !e.Done() {
		t.Error("the event is not done")
	}
	must(t, e.Synchronize(r.world.ctx))
	must(t, r.stream.Wait(e))
	must(t, r.stream.Synchronize(r.world.ctx))
}

func proveEventDone(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	e := r.newEvent()
	for range 3 {
		g := r.hold(r.stream)
		ran := false
		must(t, r.stream.Host(func() { ran = true }))
		must(t, r.stream.Record(e))
		if e.Done() {
			t.Error("the event is done before its stream got there")
		}
		g.open()
		must(t, e.Synchronize(r.world.ctx))
		if !e.Done() || !ran {
			t.Errorf("after Synchronize: done %v, work before it done %v", e.Done(), ran)
		}
	}
	must(t, r.stream.Record(e))
	must(t, r.stream.Synchronize(r.world.ctx))
	if !e.Done() {
		t.Error("the event of an idle stream is not done")
	}
}

func proveEventPoint(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	e, other := r.newEvent(), r.newStream()
	first := r.hold(r.stream)
	must(t, r.stream.Record(e))
	must(t, other.Wait(e))
	ran := make(chan struct{})
	must(t, other.Host(func() { close(ran) }))
	second := r.hold(r.stream)
	must(t, r.stream.Record(e))
	select {
	case <-ran:
		t.Error("the other stream has not waited")
	default:
	}
	first.open()
	must(t, other.Synchronize(r.world.ctx))
	<-ran
	if e.Done() {
		t.Error("the second point is reached before its stream got there")
	}
	second.open()
	must(t, e.Synchronize(r.world.ctx))
}

func proveEventContext(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	e := r.newEvent()
	g := r.hold(r.stream)
	must(t, r.stream.Record(e))
	ctx, cancel := context.WithCancel(r.world.ctx)
	cancel()
	wantError(t, "synchronizing", e.Synchronize(ctx), context.Canceled)
	g.open()
	must(t, e.Synchronize(r.world.ctx))
}

func provePingPong(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	streams := []driver.Stream{r.stream, r.newStream()}
	turn := r.newEvent()
	var ran []int
	const n = 500
	for i := range n {
		s := streams[i%2]
		must(t, s.Wait(turn))
		must(t, s.Host(func() { ran = append(ran, i) }))
		must(t, s.Record(turn))
	}
	for _, s := range streams {
		must(t, s.Synchronize(r.world.ctx))
	}
	if !slices.Equal(ran, numbers(n)) {
		t.Errorf("functions ran in the order %v", ran)
	}
}

func proveFailedRecord(t *testing.T, h Harness) {
	r := newWorld(t, h, 1, options{apart: true}).ranks[0]
	e, other := r.newEvent(), r.newStream()
	must(t, other.Close())
	wantError(t, "recording", other.Record(e), driver.ErrClosed)
	if !e.Done() {
		t.Error("the event waits for a stream that is closed")
	}
}
