package gpu

import (
	"errors"
	"slices"
)

// A stream can be closed before its work has ended. The memory that the work may use must then stay
// mapped. Suppose that a kernel is still running:
//
//   - AddUnfinished adds the kernel to the unfinished work.
//   - FreeWhenIdle(unmapA) defers unmapA, and so does FreeWhenIdle(unmapB).
//   - When the kernel has ended, Reclaim calls unmapA and then unmapB.

// unfinishedItem is a piece of work. Functions cannot be compared, but pointers to items can.
type unfinishedItem struct{ isDone func() bool }

// AddUnfinished makes MustKeepMemory return true until isDone returns true. isDone reports whether
// some work has completed. It can be called on any goroutine.
func (g *GPU) AddUnfinished(isDone func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinishedWork = append(g.unfinishedWork, &unfinishedItem{isDone: isDone})
}

// MustKeepMemory reports whether work is unfinished, or a kernel of the process never exits
// (Stuck). If it returns true, memory must stay mapped, because unmapping could wait for the work
// or destroy the context.
func (g *GPU) MustKeepMemory() bool {
	if Stuck.Load() {
		return true
	}

	for { // look at the first item until there is none
		first := g.firstUnfinished()
		if first == nil {
			return false
		}

		if !first.isDone() {
			return true
		}

		// While isDone was running, the list may have changed: Stream.Close may have added work, or
		// another goroutine may have removed first already.
		isFirst := func(item *unfinishedItem) bool { return item == first }
		g.mu.Lock()
		g.unfinishedWork = slices.DeleteFunc(g.unfinishedWork, isFirst)
		g.mu.Unlock()
	}
}

// firstUnfinished returns the first item of unfinished work, or nil.
func (g *GPU) firstUnfinished() *unfinishedItem {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.unfinishedWork) == 0 {
		return nil
	}

	return g.unfinishedWork[0]
}

// FreeWhenIdle calls free and returns its error. If memory must stay mapped, it returns nil
// instead, and a later Reclaim calls free and returns the error.
func (g *GPU) FreeWhenIdle(free func() error) error {
	mustKeep := g.MustKeepMemory()
	g.mu.Lock()
	hasEarlierFrees := len(g.deferredFrees) > 0 // which free must not overtake
	if mustKeep || hasEarlierFrees {
		g.deferredFrees = append(g.deferredFrees, free)
		g.mu.Unlock()
		return nil
	}

	g.mu.Unlock()
	return free()
}

// Reclaim calls the functions that FreeWhenIdle has deferred, in order. It stops before a function
// if memory must stay mapped, and then returns false. allFreed is set if no function is left. err
// joins the errors of the functions and those given to ReportInReclaim. The caller must not hold
// any lock of the backend.
func (g *GPU) Reclaim() (allFreed bool, err error) {
	err = g.takeUnreported()
	for !g.MustKeepMemory() {
		free, otherFreeEnded := g.beginFree()
		switch {
		case free != nil:
			freeErr := free()
			err = errors.Join(err, freeErr)
			g.endFree()
		case otherFreeEnded != nil: // another goroutine calls the first function
			<-otherFreeEnded
		default: // no function is left
			return true, err
		}
	}

	return false, err
}

// beginFree returns the first deferred function. The caller must call it, and then endFree. If
// another goroutine is calling it, beginFree returns a channel instead, which is closed after that
// call. It returns nil for both if there is no deferred function.
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

// endFree removes the first deferred function after its call. Until then, FreeWhenIdle defers
// other functions, so that they do not overtake it.
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

// takeUnreported returns the errors given to ReportInReclaim, and forgets them.
func (g *GPU) takeUnreported() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.unreported
	g.unreported = nil
	return err
}

// ReclaimBeforeMap is Reclaim for calls that map memory. It keeps errors for the next Reclaim. If
// it returned them, the call would fail on this rank, but not on the other ranks.
func (g *GPU) ReclaimBeforeMap() {
	if _, err := g.Reclaim(); err != nil {
		g.ReportInReclaim(err)
	}
}
