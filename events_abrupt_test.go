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

// TestPanicInOnEventIsLogged makes some calls of OnEvent end with a panic or with runtime.Goexit.
// All events must still be delivered. Each panic must be logged.
func TestPanicInOnEventIsLogged(t *testing.T) {
	for name, fail := range abruptEnds { // functions that panic or call runtime.Goexit
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			eventCount := 0
			failsAtEvent := map[int]bool{1: true, 3: true, 4: true} // alone, and one after the other
			o := symmem.Options{
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				OnEvent: func(*event.Event) {
					eventCount++
					if failsAtEvent[eventCount] {
						fail()
					}
				},
			}
			runRanks(t, 1, o, func(r *rank) {
				p := r.pool()
				const blocks = 4
				for range blocks {
					done := make(chan struct{})
					go func() { // runtime.Goexit in OnEvent ends this goroutine
						defer close(done)
						_, _ = p.Alloc(4096)
					}()
					<-done
				}

				const wantEvents = 1 + blocks // the first one is about the segment
				if eventCount != wantEvents {
					r.failf("OnEvent was called %d times, want %d", eventCount, wantEvents)
				}

				if n := symmem.Undelivered(r.Runtime); n != 0 {
					r.failf("%d events are left, want 0", n)
				}
			})
			wantLogged := 0 // a runtime.Goexit is not logged
			if name == "panicked" {
				wantLogged = len(failsAtEvent)
			}

			logged := strings.Count(log.String(), "Options.OnEvent panicked")
			if logged != wantLogged {
				t.Errorf("the log has %d panics, want %d:\n%s", logged, wantLogged, log.String())
			}
		})
	}
}

// TestGoexitInOnEventDuringCollective makes OnEvent end the goroutine of a collective, before the
// call returns. The pool and the Runtime must close without waiting for this call.
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
		done := make(chan struct{})
		go func() {
			defer close(done)
			call()
		}()
		<-done
		r.synchronize()
		r.closePool(p)
	})
}

// TestEventsAfterPoolClose closes a pool that has a live buffer, and then frees the buffer. The
// late free must cause no event of a buffer. The last event must be the unmapping of the segment.
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

// TestPanicsInOnEventDoNotNest queues many events during a call of OnEvent, which panics for each
// event. OnEvent must be called for all of them. If the calls nested, they would need much stack.
func TestPanicsInOnEventDoNotNest(t *testing.T) {
	const events = 4000
	firstEventBegun, endFirstEvent := make(chan struct{}), make(chan struct{})
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
		go func() { // delivers all events; ends after endFirstEvent is closed
			defer close(done)
			_, _ = p.Alloc(512)
		}()
		<-firstEventBegun
		for range events {
			r.alloc(p, 512)
		}

		close(endFirstEvent)
		<-done
		if eventCount < events { // there are also events of segments
			r.failf("OnEvent was called %d times, want at least %d", eventCount, events)
		}

		if n := symmem.Undelivered(r.Runtime); n != 0 {
			r.failf("%d events are left, want 0", n)
		}
	})
}
