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

func TestPanicInOnEventIsLogged(t *testing.T) {
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			eventCount, failsAtEvent := 0, map[int]bool{1: true, 3: true, 4: true}
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
				for range 4 {
					done := make(chan struct{})
					go func() { // runtime.Goexit in OnEvent ends this goroutine
						defer close(done)
						_, _ = p.Alloc(4096)
					}()
					<-done
				}
				const wantEvents = 5 // for a segment and four blocks
				if n := symmem.Undelivered(r.Runtime); eventCount != wantEvents || n != 0 {
					r.failf("OnEvent was called %d times and %d events are left, want %d and 0", eventCount,
						n, wantEvents)
				}
			})
			logged := strings.Count(log.String(), "Options.OnEvent panicked")
			want := 0 // a runtime.Goexit is not logged
			if name == "panicked" {
				want = len(failsAtEvent)
			}
			if logged != want {
				t.Errorf("the log has %d panics, want %d:\n%s", logged, want, log.String())
			}
		})
	}
}

// TestGoexitInOnEventDuringCollective checks that the pool and the Runtime close without waiting
// for a call whose goroutine OnEvent has ended.
func TestGoexitInOnEventDuringCollective(t *testing.T) {
	shouldExit := false
	o := symmem.Options{OnEvent: func(e *event.Event) {
		if shouldExit && e.Kind == event.KindCollective {
			shouldExit = false
			runtime.Goexit()
		}
	}}
	runRanks(t, 1, o, func(r *rank) {
		p := r.pool()
		m := r.window(p, 4096).Memory()
		call := func() { r.ok(r.World().AllReduce(r.ctx, m, m, 8, symmem.Float32, symmem.Sum, nil)) }
		for range 3 {
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
// event. If the calls nested, they would need much stack.
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
		go func() {
			defer close(done)
			_, _ = p.Alloc(512)
		}()
		<-firstEventBegun
		for range events {
			r.alloc(p, 512)
		}
		close(endFirstEvent)
		<-done
		if eventCount < events || symmem.Undelivered(r.Runtime) != 0 {
			r.failf("OnEvent was called %d times, want at least %d", eventCount, events)
		}
	})
}
