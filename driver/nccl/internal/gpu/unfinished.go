package gpu

import (
	"errors"
	"slices"
)

type unfinishedItem struct{ isDone func() bool }

// AddUnfinished registers unfinished work. isDone is called on any goroutine until it returns true.
func (g *GPU) AddUnfinished(isDone func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinishedWork = append(g.unfinishedWork, &unfinishedItem{isDone})
}

// MustKeepMemory reports whether memory that kernels may use must stay mapped, because work is
// unfinished or a kernel never exits. Unmapping the memory could wait for all work of the GPU, or
// destroy the context.
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
		// Read the list again, because Stream.Close may have added more work of the stream just
		// before isDone returned true.
		g.mu.Lock()
		g.unfinishedWork = slices.DeleteFunc(g.unfinishedWork, func(item *unfinishedItem) bool {
			return item == first
		})
		g.mu.Unlock()
	}
}

// FreeWhenIdle calls free immediately if memory need not stay mapped and no function is deferred.
// Otherwise, it defers free, and Reclaim calls free later.
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

// Reclaim calls the deferred functions in order while memory need not stay mapped. If another
// goroutine is calling one of them, Reclaim waits for that call. allFreed reports whether no
// deferred function is left. The caller must not hold any lock of the backend.
func (g *GPU) Reclaim() (allFreed bool, err error) {
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

// beginFree returns the first deferred function. If another goroutine is calling this function,
// beginFree returns a channel that is closed when the call ends.
func (g *GPU) beginFree() (free func() error, ended <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reclaiming != nil || len(g.deferredFrees) == 0 {
		return nil, g.reclaiming
	}
	g.reclaiming = make(chan struct{})
	return g.deferredFrees[0], nil
}

// endFree removes the first deferred function after its call. Until then it stays in the list, so
// that FreeWhenIdle does not overtake it.
func (g *GPU) endFree() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deferredFrees = slices.Delete(g.deferredFrees, 0, 1)
	close(g.reclaiming)
	g.reclaiming = nil
}
