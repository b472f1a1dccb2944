package gpu

import (
	"errors"
	"slices"
)

type unfinishedItem struct{ isDone func() bool }

// AddUnfinished makes MustKeepMemory return true until isDone does. isDone is called on any
// goroutine, and reports whether some work has completed.
func (g *GPU) AddUnfinished(isDone func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinishedWork = append(g.unfinishedWork, &unfinishedItem{isDone})
}

// MustKeepMemory reports whether work is unfinished or a kernel never exits. Memory must then stay
// mapped, because unmapping could wait for the work or destroy the context.
func (g *GPU) MustKeepMemory() bool {
	if Stuck.Load() {
		return true
	}
	for {
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
		// Stream.Close may have added more work before isDone returned true, so check the list
		// again.
		g.mu.Lock()
		g.unfinishedWork = slices.DeleteFunc(g.unfinishedWork, func(item *unfinishedItem) bool {
			return item == first
		})
		g.mu.Unlock()
	}
}

// FreeWhenIdle calls free now or, if memory must stay mapped, in a later Reclaim. It then returns
// nil, and Reclaim returns the error of free.
func (g *GPU) FreeWhenIdle(free func() error) error {
	mustKeep := g.MustKeepMemory()
	g.mu.Lock()
	if mustKeep || len(g.deferredFrees) > 0 {
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

func (g *GPU) takeUnreported() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.unreported
	g.unreported = nil
	return err
}

// Reclaim calls the functions that FreeWhenIdle has deferred, in order, unless memory must stay
// mapped. allFreed reports whether none is left. err includes the errors given to ReportInReclaim.
// The caller must not hold any lock of the backend.
func (g *GPU) Reclaim() (allFreed bool, err error) {
	err = g.takeUnreported()
	for !g.MustKeepMemory() {
		free, ended := g.beginFree()
		switch {
		case free != nil:
			err = errors.Join(err, free())
			g.endFree()
		case ended != nil:
			<-ended
		default:
			return true, err
		}
	}
	return false, err
}

// ReclaimBeforeMap is Reclaim for calls that map memory. It keeps errors for the next Reclaim. If
// it returned them, the caller would fail on this rank only.
func (g *GPU) ReclaimBeforeMap() {
	if _, err := g.Reclaim(); err != nil {
		g.ReportInReclaim(err)
	}
}

// beginFree returns the first deferred function, or a channel that is closed when another
// goroutine's call of it ends.
func (g *GPU) beginFree() (free func() error, ended <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reclaiming != nil || len(g.deferredFrees) == 0 {
		return nil, g.reclaiming
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
