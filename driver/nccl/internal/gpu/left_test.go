package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// TestDeferredFreesRunOnceAndInOrder calls GiveBack and Reclaim from several goroutines while work
// ends.
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
		g.Leave(ended.Load)
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
		err := g.GiveBack(func() error {
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
		t.Errorf("freed in the order %v", freed)
	}
	if done, err := g.Reclaim(); !done || err != nil || len(g.unfinished)+len(g.deferred) > 0 {
		t.Errorf("Reclaim returned %v, %v with %d unfinished works and %d deferred functions",
			done, err, len(g.unfinished), len(g.deferred))
	}
}

// TestKeepsSeesWorkRegisteredByAQuery registers more work while Keeps asks whether the first has
// ended, as Stream.Close does.
func TestKeepsSeesWorkRegisteredByAQuery(t *testing.T) {
	var g GPU
	g.Leave(func() bool {
		g.Leave(func() bool { return false })
		return true
	})
	if !g.Keeps() {
		t.Error("memory is not kept while work is unfinished")
	}
}
