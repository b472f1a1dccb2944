package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestDeferredFreesRunOnceAndInOrder defers functions with FreeWhenIdle while several goroutines
// call Reclaim, which runs them once all unfinished work has ended. Each function must run once,
// and in the order of the FreeWhenIdle calls.
func TestDeferredFreesRunOnceAndInOrder(t *testing.T) {
	const freeCount = 200 // deferred functions, and also entries of unfinished work
	var (
		g            GPU
		ended        atomic.Bool // whether the unfinished work has ended
		mu           sync.Mutex  // guards freed
		freed        []int       // the deferred functions that have run, in this order
		reclaimTasks sync.WaitGroup
	)
	for range freeCount {
		g.AddUnfinished(ended.Load)
	}

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
		ended.Store(i > freeCount/2) // the work ends in the middle
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

	reclaimTasks.Wait() // until freed has freeCount entries
	var want []int
	for i := range freeCount {
		want = append(want, i)
	}

	if !slices.Equal(freed, want) {
		t.Errorf("deferred functions ran in the order %v, want 0 to %d, once each", freed, freeCount-1)
	}

	allFreed, err := g.Reclaim()
	if !allFreed || err != nil {
		t.Errorf("Reclaim = %v, %v; want true, nil", allFreed, err)
	}

	if unfinished, deferred := len(g.unfinishedWork), len(g.deferredFrees); unfinished+deferred > 0 {
		t.Errorf("%d unfinished and %d deferred entries are left, want none", unfinished, deferred)
	}
}

// TestReclaimWaitsForOtherGoroutine calls Reclaim while another Reclaim runs a deferred function.
// The second call must not return before that function has ended, because its caller relies on the
// freed memory.
func TestReclaimWaitsForOtherGoroutine(t *testing.T) {
	var (
		g       GPU
		ended   atomic.Bool           // whether the unfinished work has ended
		begun   = make(chan struct{}) // closed when the deferred function runs
		proceed = make(chan struct{}) // closed to let it return
	)
	g.AddUnfinished(ended.Load)
	err := g.FreeWhenIdle(func() error {
		close(begun)
		<-proceed
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	ended.Store(true)
	reclaim := func() chan bool {
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

// TestKeepsMemoryRereadsUnfinishedWork adds work while MustKeepMemory queries the first work, as
// Stream.Close does. MustKeepMemory must notice the new work.
func TestKeepsMemoryRereadsUnfinishedWork(t *testing.T) {
	var g GPU
	neverEnds := func() bool { return false }
	g.AddUnfinished(func() bool {
		g.AddUnfinished(neverEnds)
		return true
	})
	if !g.MustKeepMemory() {
		t.Error("MustKeepMemory = false while work is unfinished, want true")
	}
}
