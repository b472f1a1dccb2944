package gpu

import (
	"errors"
	"slices"
)

// A stream can be closed while its kernels still use memory (AddUnfinished). Requests to free
// memory are then queued (FreeWhenIdle), and executed in order after the kernels (Reclaim).

// unfinishedItem makes isDone comparable by pointer.
type unfinishedItem struct{ isDone func() bool }

// AddUnfinished makes MustKeepMemory return true until isDone returns true. isDone may be called on
// any goroutine.
func (g *GPU) AddUnfinished(isDone func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinishedWork = append(g.unfinishedWork, &unfinishedItem{isDone: isDone})
}

// MustKeepMemory reports whether work is unfinished or a kernel of the process never exits (Stuck).
// Unmapping memory could then block, or crash a kernel and invalidate the context.
func (g *GPU) MustKeepMemory() bool {
	if Stuck.Load() {
		return true
	}

	for {
		first := g.firstUnfinished()
		if first == nil {
			return false
		}

		if !first.isDone() {
			return true
		}

		g.removeUnfinished(first)
	}
}

// removeUnfinished has no effect if another goroutine has already removed the item.
func (g *GPU) removeUnfinished(item *unfinishedItem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	isItem := func(other *unfinishedItem) bool { return other == item }
	g.unfinishedWork = slices.DeleteFunc(g.unfinishedWork, isItem)
}

// firstUnfinished returns nil if no work is unfinished.
func (g *GPU) firstUnfinished() *unfinishedItem {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.unfinishedWork) == 0 {
		return nil
	}

	return g.unfinishedWork[0]
}

// FreeWhenIdle calls free and returns its error. If memory must stay mapped or earlier frees are
// queued, it returns nil and leaves the call to a later Reclaim, which returns the error.
func (g *GPU) FreeWhenIdle(free func() error) error {
	mustKeep := g.MustKeepMemory()
	g.mu.Lock()
	hasEarlierFrees := len(g.deferredFrees) > 0
	if mustKeep || hasEarlierFrees {
		g.deferredFrees = append(g.deferredFrees, free)
		g.mu.Unlock()
		return nil
	}

	g.mu.Unlock()
	return free()
}

// Reclaim runs the deferred frees in order while MustKeepMemory returns false. allFreed reports
// whether none is left. err joins their errors and those of ReportInReclaim. The caller must not
// hold any lock of the backend.
func (g *GPU) Reclaim() (allFreed bool, err error) {
	err = g.takeUnreported()
	for !g.MustKeepMemory() {
		free, otherFreeEnded := g.beginFree()
		switch {
		case free != nil:
			freeErr := free()
			err = errors.Join(err, freeErr)
			g.endFree()
		case otherFreeEnded != nil: // another goroutine is running the first
			<-otherFreeEnded
		default: // none is left
			return true, err
		}
	}

	return false, err
}

// beginFree returns the first deferred free. The caller must run it and then call endFree. If
// another goroutine is running it, beginFree returns only a channel that is closed afterwards.
func (g *GPU) beginFree() (free func() error, otherFreeEnded <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reclaiming != nil {
		return nil, g.reclaiming
	}

	if len(g.deferredFrees) == 0 {
		return nil, nil
	}

	g.reclaiming = make(chan struct{})
	return g.deferredFrees[0], nil
}

// endFree removes the first deferred free, which until then keeps FreeWhenIdle from overtaking it.
func (g *GPU) endFree() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deferredFrees = slices.Delete(g.deferredFrees, 0, 1)
	close(g.reclaiming)
	g.reclaiming = nil
}

// ReportInReclaim makes the next Reclaim return err.
func (g *GPU) ReportInReclaim(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unreported = errors.Join(g.unreported, err)
}

// takeUnreported returns and clears the errors of ReportInReclaim.
func (g *GPU) takeUnreported() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.unreported
	g.unreported = nil
	return err
}

// ReclaimBeforeMap is Reclaim for collective calls that map memory. It keeps errors for the next
// Reclaim, because such a call must not fail on one rank only.
func (g *GPU) ReclaimBeforeMap() {
	if _, err := g.Reclaim(); err != nil {
		g.ReportInReclaim(err)
	}
}
