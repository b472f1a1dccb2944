package gpu

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// TestWhatWorkKeepsIsGivenBackOnceAndInOrder has several goroutines give back and reclaim while
// work comes to its end.
func TestWhatWorkKeepsIsGivenBackOnceAndInOrder(t *testing.T) {
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
		t.Errorf("given back in the order %v", freed)
	}
	if done, err := g.Reclaim(); !done || err != nil || len(g.left)+len(g.kept) > 0 {
		t.Errorf("%v, %v: work %d, memory %d are left", done, err, len(g.left), len(g.kept))
	}
}

// TestWorkThatIsLeftInAnotherWayIsKept: a stream that is asked about ends as an answer when it is
// closed, which leaves its work first.
func TestWorkThatIsLeftInAnotherWayIsKept(t *testing.T) {
	var g GPU
	g.Leave(func() bool {
		g.Leave(func() bool { return false })
		return true
	})
	if !g.Keeps() {
		t.Error("nothing is kept while work goes on")
	}
}
