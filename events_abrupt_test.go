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

// A call such as Pool.Alloc queues an event. Before it returns, it passes all queued events to
// Options.OnEvent, unless another call is already doing so. A panic or a runtime.Goexit in OnEvent
// does not prevent the delivery of the other events.

// Panics in OnEvent are logged, but not runtime.Goexit.
func TestPanicInOnEventIsLogged(t *testing.T) {
	for name, failAbruptly := range abruptEnds { // with a panic or runtime.Goexit
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			deliveries := 0
			failingDeliveries := []int{1, 3, 4}
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
				const blocks = 4
				for range blocks {
					inGoroutine(func() { _, _ = p.Alloc(4096) })
				}

				const segments = 1 // mapped by the first Alloc
				requireDelivered(r, deliveries, segments+blocks)
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

// inGoroutine protects the caller from a runtime.Goexit in f.
func inGoroutine(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func requireDelivered(r *rank, got, want int) {
	r.t.Helper()
	if got != want {
		r.failf("OnEvent was called %d times, want %d", got, want)
	}

	if n := symmem.Undelivered(r.Runtime); n != 0 {
		r.failf("%d events are queued, want 0", n)
	}
}

// A collective whose goroutine OnEvent has ended does not keep the pool from closing.
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
		for range 3 { // warm up: the next call takes the fast path
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

// Events are delivered in a loop, not by recursion, even if OnEvent panics each time.
func TestPanicsInOnEventDoNotNest(t *testing.T) {
	const allocations = 4000
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
		go func() { // delivers all events, after endFirstEvent
			defer close(done)
			_, _ = p.Alloc(512)
		}()
		<-firstEventBegun
		for range allocations { // each queues at least one event
			r.alloc(p, 512)
		}

		close(endFirstEvent)
		<-done
		if deliveries < allocations {
			r.failf("OnEvent was called %d times, want at least %d", deliveries, allocations)
		}

		if n := symmem.Undelivered(r.Runtime); n != 0 {
			r.failf("%d events are queued, want 0", n)
		}
	})
}
