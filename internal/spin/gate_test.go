package spin

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// callsPerBias is about the number of calls in a row after which a goroutine becomes the owner of a
// gate. The gate counts the calls of the owner separately.
const callsPerBias = 1000

func TestClosedGateIsEmpty(t *testing.T) {
	const goroutineCount = 3
	const closeCount = 300
	var gate Gate
	var isEmpty atomic.Bool // true from a true result of Empty until Open
	var stop atomic.Bool
	var callCount atomic.Int64
	var goroutines sync.WaitGroup
	call := func() {
		pass, hasEntered := gate.Enter()
		if !hasEntered {
			return
		}

		if isEmpty.Load() {
			t.Error("a call is inside the gate although Empty returned true")
		}

		callCount.Add(1)
		gate.Leave(pass)
	}
	for range goroutineCount {
		goroutines.Go(func() {
			for turn := 0; !stop.Load(); turn++ {
				call()
				if turn%(2*callsPerBias) == 0 { // rarely, so that this goroutine can become the owner
					runtime.Gosched()
				}
			}
		})
	}

	for range closeCount {
		enoughForOwner := callCount.Load() + goroutineCount*callsPerBias
		for callCount.Load() < enoughForOwner {
			runtime.Gosched()
		}

		gate.Close()
		for !gate.Empty() {
			runtime.Gosched()
		}

		isEmpty.Store(true)
		runtime.Gosched() // A call inside the gate would fail the test now.
		isEmpty.Store(false)
		gate.Open()
	}

	stop.Store(true)
	goroutines.Wait()
}

func TestGateIsEmptyAfterAllCallsLeft(t *testing.T) {
	for name, callsAfterFirst := range map[string]int{
		"without an owner":                      0,
		"caller becomes owner after first call": 3 * callsPerBias,
	} {
		t.Run(name, func(t *testing.T) {
			var gate Gate
			enter := func() Pass {
				pass, hasEntered := gate.Enter()
				if !hasEntered {
					t.Fatal("Enter of an open gate = false, want true")
				}

				return pass
			}
			first := enter()
			for range callsAfterFirst {
				gate.Leave(enter())
			}

			outer := enter()
			inner := enter()
			gate.Close()
			calls := map[string]Pass{"first": first, "outer": outer, "inner": inner}
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
			gate.Leave(enter())
		})
	}
}

// A call of the owner stays counted if the gate is closed, opened and closed again.
func TestNextCloseCountsEarlierCall(t *testing.T) {
	var gate Gate
	entered, mayLeave, left := make(chan bool), make(chan bool), make(chan bool)
	go func() {
		for range 3 * callsPerBias { // to become the owner
			pass, _ := gate.Enter()
			gate.Leave(pass)
		}

		pass, _ := gate.Enter()
		close(entered)
		<-mayLeave
		gate.Leave(pass)
		close(left)
	}()
	<-entered
	gate.Close()
	gate.Open()
	for range 3 * callsPerBias { // not enough to replace an owner that is in a call
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

	gate.Open() // The gate stays closed after one Open for two Closes.
	close(mayLeave)
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
