package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Work on a GPU is unfinished until a function that was passed to AddUnfinished returns true.
// FreeWhenIdle defers functions that free memory until all work has ended:
//
//	g.AddUnfinished(hasEnded) // hasEnded returns false at first
//	g.FreeWhenIdle(free)      // defers free, because the work may use the memory
//	g.Reclaim()               // returns false, because the work has not ended
//	g.Reclaim()               // after the end of the work: calls free and returns true

// TestDeferredFreesRunOnceAndInOrder defers functions with FreeWhenIdle while several goroutines
// call Reclaim. Each function must run once, and in the order of the FreeWhenIdle calls.
func TestDeferredFreesRunOnceAndInOrder(t *testing.T) {
	const freeCount = 200 // deferred functions, and also pieces of unfinished work
	var g GPU
	var hasEnded atomic.Bool // whether all work has ended
	for range freeCount {
		g.AddUnfinished(hasEnded.Load)
	}

	var mu sync.Mutex
	var freed []int // numbers of the functions that have run, in this order; guarded by mu
	var reclaimTasks sync.WaitGroup
	for range 4 {
		reclaimTasks.Go(func() {
			for done := false; !done; {
				_, _ = g.Reclaim() // no deferred function returns an error
				mu.Lock()
				done = len(freed) == freeCount
				mu.Unlock()
			}
		})
	}

	for i := range freeCount {
		hasEnded.Store(i > freeCount/2) // the work ends in the middle
		err := g.FreeWhenIdle(func() error {
			mu.Lock()
			defer mu.Unlock()
			freed = append(freed, i)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	reclaimTasks.Wait() // until all functions have run
	var want []int
	for i := range freeCount {
		want = append(want, i)
	}

	if !slices.Equal(freed, want) {
		t.Errorf("deferred functions ran in the order %v, want 0 to %d, once each", freed, freeCount-1)
	}

	checkNothingLeft(t, &g)
}

// checkNothingLeft checks that g has no unfinished work and no deferred functions.
func checkNothingLeft(t *testing.T, g *GPU) {
	t.Helper()
	allFreed, err := g.Reclaim()
	if !allFreed || err != nil {
		t.Errorf("Reclaim = %v, %v; want true, nil", allFreed, err)
	}

	unfinished := len(g.unfinishedWork)
	deferred := len(g.deferredFrees)
	if unfinished+deferred > 0 {
		t.Errorf("%d unfinished and %d deferred entries are left, want none", unfinished, deferred)
	}
}

// TestReclaimWaitsForOtherGoroutine calls Reclaim while another Reclaim runs a deferred function.
// The second call must not return before that function has ended, because its caller relies on the
// freed memory.
func TestReclaimWaitsForOtherGoroutine(t *testing.T) {
	var g GPU
	var hasEnded atomic.Bool       // whether the work has ended
	begun := make(chan struct{})   // closed when the deferred function runs
	proceed := make(chan struct{}) // closed to let it return
	g.AddUnfinished(hasEnded.Load)
	err := g.FreeWhenIdle(func() error {
		close(begun)
		<-proceed
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	hasEnded.Store(true)
	reclaim := func() chan bool { // calls Reclaim on another goroutine
		result := make(chan bool, 1)
		go func() {
			allFreed, _ := g.Reclaim() // the deferred function returns no error
			result <- allFreed
		}()
		return result
	}
	first := reclaim()
	<-begun
	second := reclaim()
	select {
	case <-second:
		t.Fatal("Reclaim did not wait for the other Reclaim")
	case <-time.After(20 * time.Millisecond): // the second Reclaim probably waits
	}

	close(proceed)
	for _, result := range []chan bool{first, second} {
		if allFreed := <-result; !allFreed {
			t.Error("Reclaim = false, want true")
		}
	}
}

// TestKeepsMemoryRereadsUnfinishedWork adds more work while MustKeepMemory asks whether the first
// work has ended, as Stream.Close can do. MustKeepMemory must notice the new work.
func TestKeepsMemoryRereadsUnfinishedWork(t *testing.T) {
	var g GPU
	neverEnds := func() bool { return false }
	endsAndAddsWork := func() bool {
		g.AddUnfinished(neverEnds)
		return true
	}
	g.AddUnfinished(endsAndAddsWork)
	if !g.MustKeepMemory() {
		t.Error("MustKeepMemory = false while work is unfinished, want true")
	}
}
