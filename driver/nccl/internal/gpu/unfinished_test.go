package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestDeferredFreesRunOnceAndInOrder(t *testing.T) {
	const freeCount = 200
	var (
		g     GPU
		ended atomic.Bool
		mu    sync.Mutex
		freed []int
		tasks sync.WaitGroup
	)
	for range freeCount {
		g.AddUnfinished(ended.Load)
	}
	for range 4 {
		tasks.Go(func() {
			for done := false; !done; {
				_, _ = g.Reclaim() // no deferred function returns an error
				mu.Lock()
				done = len(freed) == freeCount
				mu.Unlock()
			}
		})
	}
	for i := range freeCount {
		ended.Store(i > freeCount/2)
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
	tasks.Wait()
	var want []int
	for i := range freeCount {
		want = append(want, i)
	}
	if !slices.Equal(freed, want) {
		t.Errorf("deferred functions ran in the order %v, want 0 to %d, once each", freed, freeCount-1)
	}
	allFreed, err := g.Reclaim()
	if !allFreed || err != nil || len(g.unfinishedWork)+len(g.deferredFrees) > 0 {
		t.Errorf("Reclaim = %v, %v, with %d unfinished and %d deferred entries left; want true, nil, "+
			"with none left", allFreed, err, len(g.unfinishedWork), len(g.deferredFrees))
	}
}

func TestReclaimWaitsForOtherGoroutine(t *testing.T) {
	var (
		g       GPU
		ended   atomic.Bool
		begun   = make(chan struct{}) // closed when the deferred function runs
		proceed = make(chan struct{}) // closed to let it return
		first   = make(chan bool)
	)
	g.AddUnfinished(ended.Load)
	if err := g.FreeWhenIdle(func() error {
		close(begun)
		<-proceed
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ended.Store(true)
	go func() {
		done, _ := g.Reclaim()
		first <- done
	}()
	<-begun
	second := make(chan bool)
	go func() {
		done, _ := g.Reclaim()
		second <- done
	}()
	select {
	case <-second:
		t.Fatal("Reclaim did not wait for the other Reclaim")
	case <-time.After(20 * time.Millisecond):
	}
	close(proceed)
	for _, allFreed := range []chan bool{first, second} {
		if !<-allFreed {
			t.Error("Reclaim = false, want true")
		}
	}
}

// TestKeepsMemoryRereadsUnfinishedWork adds work during a query of the first work, as Stream.Close
// does.
func TestKeepsMemoryRereadsUnfinishedWork(t *testing.T) {
	var g GPU
	g.AddUnfinished(func() bool {
		g.AddUnfinished(func() bool { return false })
		return true
	})
	if !g.MustKeepMemory() {
		t.Error("MustKeepMemory = false while work is unfinished")
	}
}
