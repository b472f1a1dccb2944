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

// abruptEnds are callbacks that end without a return. Errors and logs contain the key.
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
				b := r.window(p, 4096) // calls SegmentAlloc and Register
				r.ok(b.Free())
				r.ok(p.Trim(r.ctx, 0)) // calls Deregister and SegmentFree
				remove()
				r.ok(r.alloc(p, 4096).Free())
			})
			const want = 4 // one per callback
			got := strings.Count(log.String(), "a function of an Observer "+name)
			if got != want {
				t.Errorf("the log names %d failures, want %d:\n%s", got, want, log.String())
			}
		})
	}
}

// A host function is a callback queued on a stream. The next Synchronize returns its failure and
// makes the stream usable again.
func TestPanickingHostFunctionFailsStream(t *testing.T) {
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{}, func(r *rank) {
				s := r.stream()
				b := r.window(r.pool(), 4096)
				r.fill(b, 1)
				r.ok(s.Host(fail))
				r.ok(s.Host(func() {})) // may be skipped after the failure
				want := "work on a stream " + name
				err := s.Synchronize(r.ctx)
				if err == nil || !strings.Contains(err.Error(), want) {
					r.failf("got %v, want an error that contains %q", err, want)
				}

				ran := false
				r.ok(s.Host(func() { ran = true }))
				r.ok(s.Synchronize(r.ctx))
				if !ran {
					r.failf("the stream skipped a function that was queued after the failed Synchronize")
				}

				r.ok(r.sum(r.World(), b))
			})
		})
	}
}

// Call.Arrived is the callback of a receive. Its failure ends the group but not the world.
func TestPanickingArrivedFunctionFailsGroup(t *testing.T) {
	const receiver, sender = 0, 1
	const count = 4                // arbitrary
	const limit = 20 * time.Second // much longer than the group takes to fail
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{UnorderedMessages: true}, func(r *rank) {
				b := r.window(r.pool(), 4096)
				s := r.stream()
				g := r.split(r.World(), 0)
				if r.Rank() == sender {
					r.ok(g.Send(r.ctx, b.Memory(), count, symmem.Int32, receiver, s))
				} else {
					// Do may return the failure. Cause always returns it.
					_ = r.Interop().Do(r.ctx, g, symmem.Call{
						Operation: symmem.OpRecv, Type: symmem.Int32, Root: symmem.AnySource, Count: count,
						Recv: b.Memory(), Arrived: func(int) { fail() },
					}, s)
				}

				select {
				case <-g.Ended():
				case <-time.After(limit):
					r.failf("the group has not failed after %v, want a failure", limit)
				}

				err := g.Cause(r.ctx)
				want := "Call.Arrived " + name
				namesFailure := err != nil && strings.Contains(err.Error(), want)
				if r.Rank() == receiver && !namesFailure {
					r.failf("got %v, want an error that contains %q", err, want)
				}

				_ = s.Synchronize(r.ctx) // may return the cause again
				r.fill(b, 1)
				r.ok(r.sum(r.World(), b))
			})
		})
	}
}

// Options.OnLate is called while a rank waits for a late rank.
func TestPanickingOnLateIsLogged(t *testing.T) {
	const lateRank = 0
	for name, fail := range abruptEnds {
		t.Run(name, func(t *testing.T) {
			logged := make(chan string, manyWarnings)
			o := symmem.Options{
				WarnAfter: warnDelay, OnLate: func(symmem.LateWarning) { fail() },
				Logger: slog.New(slog.NewTextHandler(lineWriter(logged), nil)),
			}
			runRanks(t, 2, o, func(r *rank) {
				if r.Rank() == lateRank {
					for line := ""; !strings.Contains(line, "Options.OnLate "+name); {
						line = <-logged
					}
				}

				r.ok(r.World().Check(r.ctx))
			})
		})
	}
}

type lineWriter chan string

func (w lineWriter) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}
