package symmem_test

import (
	"bytes"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"symmem"
)

// abruptEnds contains functions that do not return. The keys are how symmem's messages describe
// their ends.
var abruptEnds = map[string]func(){
	"panicked":              func() { panic("on purpose") },
	"called runtime.Goexit": runtime.Goexit,
}

func TestPanickingObserverLeavesPoolUsable(t *testing.T) {
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			o := symmem.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
			runRanks(t, 1, o, func(r *rank) {
				remove := r.Interop().Observe(symmem.Observer{
					SegmentAlloc: func(symmem.SegmentEvent) { fail() },
					SegmentFree:  func(symmem.SegmentEvent) { fail() },
					Register:     func(symmem.WindowEvent) { fail() },
					Deregister:   func(symmem.WindowEvent) { fail() },
				})
				p := r.pool()
				b := r.window(p, 4096)
				r.ok(b.Free())
				r.ok(p.Trim(r.ctx, 0))
				remove()
				r.ok(r.alloc(p, 4096).Free())
			})
			if n := strings.Count(log.String(), "a function of an Observer "+name); n != 4 {
				t.Errorf("the log names %d functions of the observer, want 4:\n%s", n, log.String())
			}
		})
	}
}

func TestPanickingHostFunctionFailsStream(t *testing.T) {
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				s := r.stream()
				b := r.window(r.pool(), 4096)
				r.fill(b, 1)
				r.ok(s.Host(fail))
				r.ok(s.Host(func() {})) // may be skipped after the failure
				err := s.Synchronize(r.ctx)
				if err == nil || !strings.Contains(err.Error(), "work on a stream "+name) {
					r.failf("got %v, want an error that contains %q", err, "work on a stream "+name)
				}
				ran := false
				r.ok(s.Host(func() { ran = true }))
				r.ok(s.Synchronize(r.ctx))
				if !ran {
					r.failf("the stream did not run work after Synchronize had returned the failure")
				}
				r.ok(r.sum(r.World(), b))
			})
		})
	}
}

func TestPanickingArrivedFunctionFailsGroup(t *testing.T) {
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{UnorderedMessages: true}, func(r *rank) {
				b := r.window(r.pool(), 4096)
				s := r.stream()
				g := r.split(r.World(), 0)
				const count = 4
				if r.Rank() == 1 {
					r.ok(g.Send(r.ctx, b.Memory(), count, symmem.Int32, 0, s))
				} else {
					// Do may return the failure. The test checks it below.
					_ = r.Interop().Do(r.ctx, g, symmem.Call{
						Operation: symmem.OpRecv, Type: symmem.Int32, Root: symmem.AnySource, Count: count,
						Recv: b.Memory(), Arrived: func(int) { fail() },
					}, s)
				}
				select {
				case <-g.Ended():
				case <-time.After(20 * time.Second):
					r.failf("the group has not failed after 20s")
				}
				err := g.Cause(r.ctx)
				if r.Rank() == 0 && !strings.Contains(err.Error(), "Call.Arrived "+name) {
					r.failf("got %v, want an error that contains %q", err, "Call.Arrived "+name)
				}
				_ = s.Synchronize(r.ctx) // may return the same failure
				r.fill(b, 1)
				r.ok(r.sum(r.World(), b))
			})
		})
	}
}

func TestPanickingOnLateIsLogged(t *testing.T) {
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			logged := make(chan string, manyWarnings)
			o := symmem.Options{
				WarnAfter: warnDelay, OnLate: func(symmem.LateWarning) { fail() },
				Logger: slog.New(slog.NewTextHandler(lineWriter(logged), nil)),
			}
			runRanks(t, 2, o, func(r *rank) {
				if r.Rank() == 0 {
					text := ""
					for !strings.Contains(text, "Options.OnLate "+name) {
						text = <-logged
					}
				}
				r.ok(r.World().Check(r.ctx))
			})
		})
	}
}

// lineWriter sends written text to a channel.
type lineWriter chan string

func (l lineWriter) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}
