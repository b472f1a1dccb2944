package gpu

import (
	"errors"
	"slices"
)

// Work on the GPU can be unfinished when its stream or group is closed. Memory that the work may
// use must then be freed later. FreeWhenIdle defers frees until all such work has completed, and
// Reclaim runs them.

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

	for { // each iteration removes the first item, unless its work is unfinished
		g.mu.Lock()
		if len(g.unfinishedWork) == 0 {
			g.mu.Unlock()
			return false
		}

		first := g.unfinishedWork[0]
		g.mu.Unlock()
		if !first.isDone() {
			return true
		}

		// Stream.Close may have added more work before isDone returned true, so look at the list
		// again. Another goroutine may have removed first already.
		isFirst := func(item *unfinishedItem) bool { return item == first }
		g.mu.Lock()
		g.unfinishedWork = slices.DeleteFunc(g.unfinishedWork, isFirst)
		g.mu.Unlock()
	}
}

// FreeWhenIdle calls free and returns its error. If memory must stay mapped, it returns nil
// instead, and a later Reclaim calls free and returns the error.
func (g *GPU) FreeWhenIdle(free func() error) error {
	mustKeep := g.MustKeepMemory()
	g.mu.Lock()
	if mustKeep || len(g.deferredFrees) > 0 { // free must not overtake earlier ones
		g.deferredFrees = append(g.deferredFrees, free)
		g.mu.Unlock()
		return nil
	}

	g.mu.Unlock()
	return free()
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

// Reclaim calls the functions that FreeWhenIdle has deferred, in order, until memory must stay
// mapped. allFreed is set if no function is left. err joins their errors and those given to
// ReportInReclaim. The caller must not hold any lock of the backend.
func (g *GPU) Reclaim() (allFreed bool, err error) {
	err = g.takeUnreported()
	for !g.MustKeepMemory() {
		free, ended := g.beginFree()
		switch {
		case free != nil:
			freeErr := free()
			err = errors.Join(err, freeErr)
			g.endFree()
		case ended != nil: // another goroutine calls the first function
			<-ended
		default: // no function is left
			return true, err
		}
	}

	return false, err
}

// ReclaimBeforeMap is Reclaim for calls that map memory. It keeps errors for the next Reclaim. If
// it returned them, the call would fail on this rank, but not on the other ranks.
func (g *GPU) ReclaimBeforeMap() {
	if _, err := g.Reclaim(); err != nil {
		g.ReportInReclaim(err)
	}
}

// beginFree returns the first deferred function for the caller to call before endFree. If another
// goroutine is calling that function, it returns a channel instead, which is closed after that
// call. It returns nil for both if there is no deferred function.
func (g *GPU) beginFree() (free func() error, ended <-chan struct{}) {
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
