package gpu

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// A kernel can outlive its stream. While it runs, unmapping memory could block or crash the kernel.
// AddUnfinished registers unfinished work, FreeWhenIdle defers frees, and Reclaim runs the deferred
// frees.

// KernelEndTimeout limits the wait for a kernel that was asked to exit. Tests raise it on the
// software GPU.
var KernelEndTimeout = time.Second

// Stuck is set forever once a GPU of this process has a kernel that will not exit before the
// process does. The backend then makes no CUDA calls that may wait for the whole device.
var Stuck atomic.Bool

// CloseTimeout returns the time limit for a Close: usual or, if a kernel is stuck, less.
func CloseTimeout(usual time.Duration) time.Duration {
	if Stuck.Load() {
		return min(usual, KernelEndTimeout)
	}

	return usual
}

// unfinishedItem wraps isDone, because functions are not comparable.
type unfinishedItem struct{ isDone func() bool }

// AddUnfinished makes MustKeepMemory return true until isDone returns true. isDone may be called on
// any goroutine.
func (g *GPU) AddUnfinished(isDone func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinishedWork = append(g.unfinishedWork, &unfinishedItem{isDone: isDone})
}

// MustKeepMemory reports whether memory must stay mapped, because of unfinished work or Stuck.
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

// firstUnfinished returns nil if all work is done.
func (g *GPU) firstUnfinished() *unfinishedItem {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.unfinishedWork) == 0 {
		return nil
	}

	return g.unfinishedWork[0]
}

// removeUnfinished has no effect if another goroutine has already removed the item.
func (g *GPU) removeUnfinished(item *unfinishedItem) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.unfinishedWork, item); i >= 0 {
		g.unfinishedWork = slices.Delete(g.unfinishedWork, i, i+1)
	}
}

// FreeWhenIdle calls free and returns its error. If MustKeepMemory returns true or an earlier free
// is deferred, it returns nil and defers free to a later Reclaim.
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

// Reclaim runs the deferred frees in order until none is left or MustKeepMemory returns true. It
// returns the errors of these frees and those passed to ReportInReclaim. The caller must not hold
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
		case otherFreeEnded != nil: // another goroutine is running a free
			<-otherFreeEnded
		default: // no free is left
			return true, err
		}
	}

	return false, err
}

// beginFree returns the first deferred free, or nil. The caller must run it and then call endFree.
// While another goroutine runs it, beginFree returns only a channel that endFree closes.
func (g *GPU) beginFree() (free func() error, otherFreeEnded <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.firstFreeEnded != nil {
		return nil, g.firstFreeEnded
	}

	if len(g.deferredFrees) == 0 {
		return nil, nil
	}

	g.firstFreeEnded = make(chan struct{})
	return g.deferredFrees[0], nil
}

// endFree removes the first deferred free, which has run.
func (g *GPU) endFree() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deferredFrees = slices.Delete(g.deferredFrees, 0, 1)
	close(g.firstFreeEnded)
	g.firstFreeEnded = nil
}

// ReportInReclaim makes the next Reclaim return err.
func (g *GPU) ReportInReclaim(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unreported = errors.Join(g.unreported, err)
}

// takeUnreported returns and clears the errors passed to ReportInReclaim.
func (g *GPU) takeUnreported() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.unreported
	g.unreported = nil
	return err
}

// ReclaimBeforeMap runs Reclaim in a call that all ranks must make together. The call must not fail
// on one rank only, so the next Reclaim returns the errors.
func (g *GPU) ReclaimBeforeMap() {
	if _, err := g.Reclaim(); err != nil {
		g.ReportInReclaim(err)
	}
}
