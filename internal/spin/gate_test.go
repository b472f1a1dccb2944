package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestClosedGateIsEmpty closes a gate while several goroutines repeatedly enter it. One of them
// sometimes owns the bias. When Empty has returned true, no call may be inside.
func TestClosedGateIsEmpty(t *testing.T) {
	var gate Gate
	var mayEnter atomic.Bool // false while the gate is closed and empty
	var stop atomic.Bool
	var entered atomic.Int64 // number of calls that have entered
	var all sync.WaitGroup
	mayEnter.Store(true)
	for range 3 {
		all.Go(func() {
			for turn := 0; !stop.Load(); turn++ {
				if pass, hasEntered := gate.Enter(); hasEntered {
					if !mayEnter.Load() {
						t.Error("a call is inside although Empty returned true")
					}
					entered.Add(1)
					gate.Leave(pass)
				}
				if turn%(2*callsPerBias) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	for range 300 {
		for begin := entered.Load(); entered.Load() < begin+3*callsPerBias; {
			runtime.Gosched()
		}
		gate.Close()
		for !gate.Empty() {
			runtime.Gosched()
		}
		mayEnter.Store(false)
		runtime.Gosched()
		mayEnter.Store(true)
		gate.Open()
	}
	stop.Store(true)
	all.Wait()
}

// callsPerBias is the number of consecutive calls that make a goroutine the owner of a biased
// Gate.
const callsPerBias = 1000

// TestGateIsEmptyAfterAllCallsLeft closes a gate while a goroutine is in three nested calls. Empty
// must return true only after all three have left.
func TestGateIsEmptyAfterAllCallsLeft(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls int // number of calls after the early one, which may make the goroutine the owner
	}{{"first calls", 0}, {"frequent calls", 3 * callsPerBias}} {
		t.Run(c.name, func(t *testing.T) {
			var gate Gate
			enter := func() Pass {
				pass, hasEntered := gate.Enter()
				if !hasEntered {
					t.Fatal("Enter of an open gate = false, want true")
				}
				return pass
			}
			early := enter()
			for range c.calls {
				gate.Leave(enter())
			}
			outer, inner := enter(), enter()
			gate.Close()
			for name, pass := range map[string]Pass{"early": early, "outer": outer, "inner": inner} {
				if gate.Empty() {
					t.Errorf("Empty = true before the %s call left, want false", name)
				}
				gate.Leave(pass)
			}
			if !gate.Empty() {
				t.Error("Empty = false after all calls have left, want true")
			}
			if _, hasEntered := gate.Enter(); hasEntered || !gate.Closed() {
				t.Errorf("Enter of a closed gate = %t and Closed = %t, want false and true", hasEntered,
					gate.Closed())
			}
			gate.Open()
			gate.Leave(enter())
		})
	}
}

// TestNextCloseCountsEarlierCall closes and reopens the gate while the owner is in a call.
// After the next Close, Empty must still count that call.
func TestNextCloseCountsEarlierCall(t *testing.T) {
	var gate Gate
	entered, leave, left := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		for range 3 * callsPerBias {
			pass, _ := gate.Enter()
			gate.Leave(pass)
		}
		pass, _ := gate.Enter()
		close(entered)
		<-leave
		gate.Leave(pass)
		close(left)
	}()
	<-entered
	gate.Close()
	gate.Open()
	// These calls must not take the bias away from the goroutine that is inside.
	for range 3 * callsPerBias {
		pass, hasEntered := gate.Enter()
		if !hasEntered {
			t.Fatal("Enter of the open gate = false, want true")
		}
		gate.Leave(pass)
	}
	gate.Close()
	gate.Close()
	if gate.Empty() {
		t.Error("Empty = true while a call is inside, want false")
	}
	gate.Open()
	close(leave)
	<-left
	if !gate.Empty() {
		t.Error("Empty = false after the call has left, want true")
	}
}

func BenchmarkGateOfOneGoroutine(b *testing.B) {
	var gate Gate
	for b.Loop() {
		pass, _ := gate.Enter()
		gate.Leave(pass)
	}
}
