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

// A call such as Pool.Alloc queues an event. If no other call is delivering events, it passes all
// queued events to Options.OnEvent before it returns.

// After a panic or a runtime.Goexit in OnEvent, later events are delivered. Only a panic is logged.
func TestPanicInOnEventIsLogged(t *testing.T) {
	for name, failAbruptly := range abruptEnds { // a panic and a runtime.Goexit
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			deliveries := 0
			failingDeliveries := []int{1, 3, 4} // the first one, and two in a row
			o := symmem.Options{
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
				OnEvent: func(*event.Event) {
					deliveries++
					if slices.Contains(failingDeliveries, deliveries) {
						failAbruptly()
					}
				},
			}
			runRanks(t, 1, o, func(r *rank) {
				p := r.pool()
				const allocEvents = 4
				for range allocEvents {
					inGoroutine(func() { _, _ = p.Alloc(4096) }) // Goexit ends the goroutine
				}

				const segmentEvents = 1 // the first Alloc maps a segment
				const want = segmentEvents + allocEvents
				if deliveries != want {
					r.failf("OnEvent was called %d times, want %d", deliveries, want)
				}

				requireNoneQueued(r)
			})
			wantLogged := 0
			if name == "panicked" {
				wantLogged = len(failingDeliveries)
			}

			logged := strings.Count(log.String(), "Options.OnEvent panicked")
			if logged != wantLogged {
				t.Errorf("the log has %d panics, want %d:\n%s", logged, wantLogged, log.String())
			}
		})
	}
}

// inGoroutine calls f in a new goroutine, because f may call runtime.Goexit.
func inGoroutine(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func requireNoneQueued(r *rank) {
	r.t.Helper()
	if n := symmem.Undelivered(r.Runtime); n != 0 {
		r.failf("%d events are queued, want 0", n)
	}
}

// A pool can be closed after OnEvent has ended the goroutine that calls AllReduce.
func TestGoexitInOnEventDuringCollective(t *testing.T) {
	exitAtCollective := false
	o := symmem.Options{OnEvent: func(e *event.Event) {
		if exitAtCollective && e.Kind == event.KindCollective {
			exitAtCollective = false
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
		const callsBeforeFastPath = 3
		for range callsBeforeFastPath {
			call()
		}

		exitAtCollective = true
		inGoroutine(call)
		r.synchronize()
		r.closePool(p)
	})
}

// Freeing a buffer of a closed pool causes no event.
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

// One call can deliver many events without recursion even if OnEvent always panics.
func TestPanicsInOnEventDoNotNest(t *testing.T) {
	const allocations = 4000 // an arbitrary large number
	firstEventBegun := make(chan struct{})
	endFirstEvent := make(chan struct{})
	deliveries := 0
	o := symmem.Options{
		Logger: slog.New(slog.DiscardHandler),
		OnEvent: func(*event.Event) {
			deliveries++
			if deliveries == 1 {
				close(firstEventBegun)
				<-endFirstEvent
			}

			panic("on purpose")
		},
	}
	runRanks(t, 1, o, func(r *rank) {
		p := r.pool()
		done := make(chan struct{})
		go func() { // delivers its own events and the events that are queued meanwhile
			defer close(done)
			_, _ = p.Alloc(512)
		}()
		<-firstEventBegun
		for range allocations { // each queues an event and returns
			r.alloc(p, 512)
		}

		close(endFirstEvent)
		<-done
		if deliveries < allocations {
			r.failf("OnEvent was called %d times, want at least %d", deliveries, allocations)
		}

		requireNoneQueued(r)
	})
}
