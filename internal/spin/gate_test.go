package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// A Gate counts the calls that are inside: those that have called Enter, but not yet Leave. After
// Close, Enter lets no more calls in. Empty then reports whether all have left.
//
// A goroutine that makes 1000 calls in a row becomes the owner: it gets a bias, which makes its
// calls faster. The Gate counts calls of the owner in another way than the others, so the tests mix
// both.

// callsPerBias is the number of calls in a row that make a goroutine the owner.
const callsPerBias = 1000

// TestClosedGateIsEmpty closes a gate while several goroutines repeatedly enter it. One of them is
// sometimes the owner. When Empty has returned true, no call may be inside.
func TestClosedGateIsEmpty(t *testing.T) {
	const goroutineCount = 3
	const closeCount = 300
	var gate Gate
	var mayEnter atomic.Bool // false while the gate is closed and empty
	var stop atomic.Bool
	var entered atomic.Int64 // number of calls that have entered
	var goroutines sync.WaitGroup
	mayEnter.Store(true)
	enterOnce := func() {
		pass, hasEntered := gate.Enter()
		if !hasEntered {
			return
		}

		if !mayEnter.Load() {
			t.Error("a call is inside although Empty returned true")
		}

		entered.Add(1)
		gate.Leave(pass)
	}
	for range goroutineCount {
		goroutines.Go(func() {
			for turn := 0; !stop.Load(); turn++ {
				enterOnce()
				if turn%(2*callsPerBias) == 0 { // rarely, so that this goroutine can become the owner
					runtime.Gosched()
				}
			}
		})
	}

	for range closeCount {
		// Wait for enough calls to create an owner.
		enough := entered.Load() + goroutineCount*callsPerBias
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
	goroutines.Wait()
}

// TestGateIsEmptyAfterAllCallsLeft closes a gate while three calls of one goroutine are inside.
// Empty must return true only after all three have left. In the second case, the goroutine becomes
// the owner after the first of the three calls, so the gate counts the other two in another way.
func TestGateIsEmptyAfterAllCallsLeft(t *testing.T) {
	for name, otherCalls := range map[string]int{
		"without an owner": 0,
		"with an owner":    3 * callsPerBias,
	} {
		t.Run(name, func(t *testing.T) {
			var gate Gate
			enter := func() Pass { // fails the test if the gate is closed
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

			outer := enter()
			inner := enter()
			gate.Close()
			calls := map[string]Pass{"early": early, "outer": outer, "inner": inner}
			for call, pass := range calls { // in a random order
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

// TestNextCloseCountsEarlierCall closes and reopens the gate while a call of its owner is inside.
// After the next Close, Empty must still count that call.
func TestNextCloseCountsEarlierCall(t *testing.T) {
	var gate Gate
	entered := make(chan bool) // closed when the call is inside
	leave := make(chan bool)   // closed to let it leave
	left := make(chan bool)    // closed when it has left
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
	// These calls of another goroutine must not make the gate forget the call that is inside.
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
