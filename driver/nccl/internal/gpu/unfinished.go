package gpu

import (
	"errors"
	"slices"
)

// unfinished is work that continues after its stream or group was closed, or after a wait for it
// timed out.
type unfinished struct{ done func() bool }

// AddUnfinished registers unfinished work. done reports whether the work has completed. It may be
// called on any goroutine, repeatedly, until it returns true.
func (g *GPU) AddUnfinished(done func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinished = append(g.unfinished, &unfinished{done})
}

// KeepsMemory reports whether memory that kernels may use must stay mapped. That is the case until
// all work registered with AddUnfinished has completed and, if a kernel is stuck, forever. If such
// memory were unmapped, CUDA might either unmap it under a running kernel, which destroys the
// context, or first wait for the whole device.
func (g *GPU) KeepsMemory() bool {
	if Stuck.Load() {
		return true
	}
	for {
		g.mu.Lock()
		if len(g.unfinished) == 0 {
			g.mu.Unlock()
			return false
		}
		work := g.unfinished[0]
		g.mu.Unlock()
		if !work.done() {
			return true
		}
		// Read the list again, because Stream.Close registers the stream's work again before it
		// makes done return true.
		g.mu.Lock()
		g.unfinished = slices.DeleteFunc(g.unfinished, func(u *unfinished) bool { return u == work })
		g.mu.Unlock()
	}
}

// FreeWhenIdle calls free immediately if memory need not stay mapped (KeepsMemory) and no earlier
// call of free is deferred. Otherwise a later Reclaim calls free.
func (g *GPU) FreeWhenIdle(free func() error) error {
	keep := g.KeepsMemory()
	g.mu.Lock()
	if keep || len(g.deferred) > 0 {
		g.deferred = append(g.deferred, free)
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	return free()
}

// Reclaim calls the functions that FreeWhenIdle has deferred, in order, unless memory must stay
// mapped. all reports whether all of them have been called. The caller must not hold any lock of
// the backend.
func (g *GPU) Reclaim() (all bool, err error) {
	for !g.KeepsMemory() {
		g.mu.Lock()
		if len(g.deferred) == 0 || g.reclaiming {
			all = len(g.deferred) == 0
			g.mu.Unlock()
			return all, err
		}
		g.reclaiming = true
		free := g.deferred[0]
		g.mu.Unlock()
		err = errors.Join(err, free())
		g.mu.Lock()
		// Remove the function only after calling it, so that a concurrent FreeWhenIdle cannot
		// overtake it.
		g.deferred = slices.Delete(g.deferred, 0, 1)
		g.reclaiming = false
		g.mu.Unlock()
	}
	return false, err
}
