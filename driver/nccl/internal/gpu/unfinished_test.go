package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Frees run once, in the order of the FreeWhenIdle calls, even if several goroutines call Reclaim.
func TestDeferredFreesRunOnceAndInOrder(t *testing.T) {
	const freeCount = 200 // arbitrary
	var g GPU
	var hasEnded atomic.Bool
	for range freeCount {
		g.AddUnfinished(hasEnded.Load)
	}

	var mu sync.Mutex
	var freed []int // guarded by mu
	areAllFreed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(freed) == freeCount
	}
	var reclaimers sync.WaitGroup
	for range 4 {
		reclaimers.Go(func() {
			for !areAllFreed() {
				_, _ = g.Reclaim() // false until the work has ended; the frees return no errors
			}
		})
	}

	var want []int
	for i := range freeCount {
		isSecondHalf := i > freeCount/2
		hasEnded.Store(isSecondHalf)
		want = append(want, i)
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

	reclaimers.Wait()
	if !slices.Equal(freed, want) {
		t.Errorf("order of frees = %v, want 0 to %d, once each", freed, freeCount-1)
	}

	checkNothingLeft(t, &g)
}

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

// Reclaim waits for a free that another Reclaim is running, because its caller needs the memory.
func TestReclaimWaitsForOtherGoroutine(t *testing.T) {
	var g GPU
	var hasEnded atomic.Bool
	begun := make(chan struct{})
	proceed := make(chan struct{})
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
	startReclaim := func() chan bool {
		result := make(chan bool, 1)
		go func() {
			allFreed, _ := g.Reclaim() // the deferred function returns no error
			result <- allFreed
		}()
		return result
	}
	first := startReclaim()
	<-begun
	second := startReclaim()
	select {
	case <-second:
		t.Fatal("Reclaim did not wait for the other Reclaim")
	case <-time.After(20 * time.Millisecond): // long enough to catch a Reclaim that does not wait
	}

	close(proceed)
	for _, result := range []chan bool{first, second} {
		if allFreed := <-result; !allFreed {
			t.Error("Reclaim = false, want true")
		}
	}
}

// MustKeepMemory notices work that is added during isDone.
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
