package symmem_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"

	"symmem"
	"symmem/event"
)

// A call such as Pool.Alloc queues an event, which describes what the call has done. Before it
// returns, it delivers the queued events: it calls Options.OnEvent with each of them. If another
// call is delivering events at that moment, that call also delivers the new one.
//
// In most of these tests, OnEvent does not return: it panics, or it calls runtime.Goexit, which
// ends the goroutine of the call. All events must be delivered nevertheless.

// TestPanicInOnEventIsLogged makes some calls of OnEvent end with a panic or with runtime.Goexit.
// All events must be delivered. Each panic must be logged, but not a runtime.Goexit.
func TestPanicInOnEventIsLogged(t *testing.T) {
	for name, fail := range abruptEnds { // functions that panic or call runtime.Goexit
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			events := 0                                          // calls of OnEvent
			isFailing := map[int]bool{1: true, 3: true, 4: true} // by number of the call
			o := symmem.Options{
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				OnEvent: func(*event.Event) {
					events++
					if isFailing[events] {
						fail()
					}
				},
			}
			runRanks(t, 1, o, func(r *rank) {
				p := r.pool()
				const blocks = 4
				for range blocks {
					inGoroutine(func() { _, _ = p.Alloc(4096) })
				}

				const wantEvents = 1 + blocks // of the pool's segment and the blocks
				requireDelivered(r, events, wantEvents)
			})
			wantLogged := 0
			if name == "panicked" {
				wantLogged = len(isFailing)
			}

			logged := strings.Count(log.String(), "Options.OnEvent panicked")
			if logged != wantLogged {
				t.Errorf("the log has %d panics, want %d:\n%s", logged, wantLogged, log.String())
			}
		})
	}
}

// inGoroutine runs f in a new goroutine, which runtime.Goexit may end, and waits for its end.
func inGoroutine(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// requireDelivered fails the test unless OnEvent was called want times and no event is queued.
func requireDelivered(r *rank, got, want int) {
	r.t.Helper()
	if got != want {
		r.failf("OnEvent was called %d times, want %d", got, want)
	}

	if n := symmem.Undelivered(r.Runtime); n != 0 {
		r.failf("%d events are queued, want 0", n)
	}
}

// TestGoexitInOnEventDuringCollective makes OnEvent end the goroutine of a collective, so that the
// call does not return. The pool and the Runtime must close without waiting for this call.
func TestGoexitInOnEventDuringCollective(t *testing.T) {
	shouldExit := false // the next event of a collective ends its goroutine
	o := symmem.Options{OnEvent: func(e *event.Event) {
		if shouldExit && e.Kind == event.KindCollective {
			shouldExit = false
			runtime.Goexit()
		}
	}}
	runRanks(t, 1, o, func(r *rank) {
		p := r.pool()
		m := r.window(p, 4096).Memory()
		const count = 8
		call := func() {
			r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, nil))
		}
		for range 3 { // so that the next call finds everything prepared
			call()
		}

		shouldExit = true
		inGoroutine(call)
		r.synchronize()
		r.closePool(p)
	})
}

// TestEventsAfterPoolClose closes a pool that has a live buffer, and then frees the buffer. There
// must be no event of the free: the last event is the release of the pool's segment.
func TestEventsAfterPoolClose(t *testing.T) {
	var kinds []event.Kind
	o := symmem.Options{OnEvent: func(e *event.Event) { kinds = append(kinds, e.Kind) }}
	runRanks(t, 1, o, func(r *rank) {
		p := r.pool()
		b := r.alloc(p, 4096)
		r.closePool(p)
		r.ok(b.Free())
		want := []event.Kind{event.KindSegment, event.KindAlloc, event.KindRelease}
		if !slices.Equal(kinds, want) {
			r.failf("got events %v, want %v", kinds, want)
		}
	})
}

// TestPanicsInOnEventDoNotNest queues 4000 events during a call of OnEvent, which panics for each
// event. All must be delivered. If these calls of OnEvent nested, they would need much stack.
func TestPanicsInOnEventDoNotNest(t *testing.T) {
	const events = 4000
	firstEventBegun := make(chan struct{})
	endFirstEvent := make(chan struct{})
	eventCount := 0
	o := symmem.Options{
		Logger: slog.New(slog.DiscardHandler),
		OnEvent: func(*event.Event) {
			eventCount++
			if eventCount == 1 {
				close(firstEventBegun)
				<-endFirstEvent
			}

			panic("on purpose")
		},
	}
	runRanks(t, 1, o, func(r *rank) {
		p := r.pool()
		done := make(chan struct{})
		go func() { // waits for endFirstEvent, and then delivers all queued events
			defer close(done)
			_, _ = p.Alloc(512)
		}()
		<-firstEventBegun
		for range events { // each allocation queues an event
			r.alloc(p, 512)
		}

		close(endFirstEvent)
		<-done
		if eventCount < events { // there are also events of segments
			r.failf("OnEvent was called %d times, want at least %d", eventCount, events)
		}

		if n := symmem.Undelivered(r.Runtime); n != 0 {
			r.failf("%d events are queued, want 0", n)
		}
	})
}
