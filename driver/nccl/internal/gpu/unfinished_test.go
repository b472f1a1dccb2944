package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

func TestDeferredFreesRunOnceAndInOrder(t *testing.T) {
	const parts = 200
	var (
		g     GPU
		ended atomic.Bool
		mu    sync.Mutex
		freed []int
		all   sync.WaitGroup
	)
	for range parts {
		g.AddUnfinished(ended.Load)
	}
	for range 4 {
		all.Go(func() {
			for done := false; !done; {
				_, _ = g.Reclaim()
				mu.Lock()
				done = len(freed) == parts
				mu.Unlock()
			}
		})
	}
	for i := range parts {
		ended.Store(i > parts/2)
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
	all.Wait()
	if !slices.IsSorted(freed) {
		t.Errorf("deferred functions ran in the order %v, want ascending order", freed)
	}
	done, err := g.Reclaim()
	if !done || err != nil || len(g.unfinishedWork)+len(g.deferredFrees) > 0 {
		t.Errorf("Reclaim = %v, %v, with %d unfinished and %d deferred entries left; want true, nil, "+
			"with none left", done, err, len(g.unfinishedWork), len(g.deferredFrees))
	}
}

// TestKeepsMemoryRereadsUnfinishedWork registers more work while MustKeepMemory queries the first
// work, as Stream.Close does.
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
