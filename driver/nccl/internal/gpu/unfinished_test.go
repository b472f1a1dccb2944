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
	allFreed := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(freed) == freeCount
	}
	var reclaimers sync.WaitGroup
	for range 4 { // arbitrary
		reclaimers.Go(func() {
			for !allFreed() {
				_, _ = g.Reclaim() // the order of the frees is checked below
			}
		})
	}

	var want []int
	for i := range freeCount {
		if i == freeCount/2 {
			hasEnded.Store(true) // earlier frees were deferred, later ones compete with Reclaim
		}

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

// Reclaim waits for a free that another Reclaim is running.
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
	first := startReclaim(&g)
	<-begun
	second := startReclaim(&g)
	select {
	case <-second:
		t.Fatal("Reclaim did not wait for the other Reclaim")
	case <-time.After(20 * time.Millisecond): // long enough to catch a Reclaim that does not wait
	}

	close(proceed)
	for _, result := range []<-chan bool{first, second} {
		if allFreed := <-result; !allFreed {
			t.Error("Reclaim = false, want true")
		}
	}
}

// startReclaim calls Reclaim on a new goroutine and sends the result allFreed.
func startReclaim(g *GPU) <-chan bool {
	result := make(chan bool, 1)
	go func() {
		allFreed, _ := g.Reclaim() // no free of these tests returns an error
		result <- allFreed
	}()
	return result
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
