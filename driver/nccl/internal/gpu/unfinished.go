package gpu

import (
	"errors"
	"slices"
)

type unfinished struct{ done func() bool }

// AddUnfinished registers unfinished work. done reports whether it has completed, and may be called
// on any goroutine until it returns true.
func (g *GPU) AddUnfinished(done func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinished = append(g.unfinished, &unfinished{done})
}

// MustKeepMemory reports whether memory that kernels may use must stay mapped, because work is
// unfinished or a kernel is stuck. Unmapping it might wait for the whole device, or destroy the
// context.
func (g *GPU) MustKeepMemory() bool {
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
		// Read the list again, because Stream.Close may have added the rest of the stream's work
		// just before done returned true.
		g.mu.Lock()
		g.unfinished = slices.DeleteFunc(g.unfinished, func(u *unfinished) bool { return u == work })
		g.mu.Unlock()
	}
}

// FreeWhenIdle calls free immediately, unless memory must stay mapped or an earlier function is
// still deferred. In these cases, Reclaim calls free later.
func (g *GPU) FreeWhenIdle(free func() error) error {
	keep := g.MustKeepMemory()
	g.mu.Lock()
	if keep || len(g.deferred) > 0 {
		g.deferred = append(g.deferred, free)
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	return free()
}

// Reclaim calls the deferred functions in order, unless memory must stay mapped. all reports
// whether none are left. The caller must not hold any lock of the backend.
func (g *GPU) Reclaim() (all bool, err error) {
	for !g.MustKeepMemory() {
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
		// Until now, a concurrent FreeWhenIdle must not overtake the function.
		g.deferred = slices.Delete(g.deferred, 0, 1)
		g.reclaiming = false
		g.mu.Unlock()
	}
	return false, err
}
