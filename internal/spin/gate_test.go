package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// callsPerBias is the number of consecutive calls that make a goroutine the owner of a biased Gate.
// The calls of the owner are faster.
const callsPerBias = 1000

// TestClosedGateIsEmpty closes a gate while several goroutines repeatedly enter it. One of them
// sometimes owns the bias. When Empty has returned true, no call may be inside.
func TestClosedGateIsEmpty(t *testing.T) {
	const goroutineCount, closeCount = 3, 300
	var gate Gate
	var mayEnter atomic.Bool // false while the gate is closed and empty
	var stop atomic.Bool
	var entered atomic.Int64 // number of calls that have entered
	var all sync.WaitGroup
	mayEnter.Store(true)
	for range goroutineCount {
		all.Go(func() {
			for turn := 0; !stop.Load(); turn++ {
				if pass, hasEntered := gate.Enter(); hasEntered {
					if !mayEnter.Load() {
						t.Error("a call is inside although Empty returned true")
					}

					entered.Add(1)
					gate.Leave(pass)
				}

				if turn%(2*callsPerBias) == 0 { // rarely, so that this goroutine can become the owner
					runtime.Gosched()
				}
			}
		})
	}

	for range closeCount {
		// Wait for enough calls to create a bias.
		enough := entered.Load() + 3*callsPerBias
		for entered.Load() < enough {
			runtime.Gosched()
		}

		gate.Close()
		for !gate.Empty() {
			runtime.Gosched()
		}

		mayEnter.Store(false)
		runtime.Gosched() // Goroutines that are inside would fail the test now.
		mayEnter.Store(true)
		gate.Open()
	}

	stop.Store(true)
	all.Wait()
}

// TestGateIsEmptyAfterAllCallsLeft closes a gate while a goroutine is in three nested calls. Empty
// must return true only after all three have left. In one case, other calls after the early one
// make the goroutine the owner, so that the three calls are counted in two ways.
func TestGateIsEmptyAfterAllCallsLeft(t *testing.T) {
	for name, otherCalls := range map[string]int{
		"first calls": 0, "frequent calls": 3 * callsPerBias,
	} {
		t.Run(name, func(t *testing.T) {
			var gate Gate
			// enter enters the open gate, or ends the test.
			enter := func() Pass {
				pass, hasEntered := gate.Enter()
				if !hasEntered {
					t.Fatal("Enter of an open gate = false, want true")
				}

				return pass
			}
			early := enter()
			for range otherCalls {
				gate.Leave(enter())
			}

			outer, inner := enter(), enter()
			gate.Close()
			calls := map[string]Pass{"early": early, "outer": outer, "inner": inner}
			for call, pass := range calls { // in any order
				if gate.Empty() {
					t.Errorf("Empty = true before the %s call left, want false", call)
				}

				gate.Leave(pass)
			}

			if !gate.Empty() {
				t.Error("Empty = false after all calls have left, want true")
			}

			if _, hasEntered := gate.Enter(); hasEntered {
				t.Error("Enter of a closed gate = true, want false")
			}

			if !gate.Closed() {
				t.Error("Closed of a closed gate = false, want true")
			}

			gate.Open()
			gate.Leave(enter()) // enters again
		})
	}
}

// TestNextCloseCountsEarlierCall closes and reopens the gate while its owner, another goroutine, is
// in a call. After the next Close, Empty must still count that call.
func TestNextCloseCountsEarlierCall(t *testing.T) {
	var gate Gate
	entered, leave, left := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		// Become the owner.
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
	gate.Close() // One Open must undo both.
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
