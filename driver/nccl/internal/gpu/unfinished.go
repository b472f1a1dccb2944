package gpu

import (
	"errors"
	"slices"
)

// unfinished represents work that outlives its stream, its group or the wait for it.
type unfinished struct{ ended func() bool }

// AddUnfinished registers unfinished work. ended reports whether it has ended; it may be called
// from any goroutine and any number of times until it returns true.
func (g *GPU) AddUnfinished(ended func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinished = append(g.unfinished, &unfinished{ended})
}

// KeepsMemory reports whether memory that kernels may use must stay mapped. It must until all work
// registered with AddUnfinished has ended, and forever if a kernel is stuck. CUDA might unmap
// memory under a running kernel, which destroys the context, or wait for the whole device first.
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
		if !work.ended() {
			return true
		}
		// Stream.Close makes ended return true, but first registers the stream's work again, so the list
		// must be read again.
		g.mu.Lock()
		g.unfinished = slices.DeleteFunc(g.unfinished, func(u *unfinished) bool { return u == work })
		g.mu.Unlock()
	}
}

// FreeWhenIdle calls free at once, or in a later Reclaim if memory must stay mapped (KeepsMemory)
// or an earlier free is still deferred.
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
// mapped. It reports whether no function remains. The caller must hold no lock of the backend.
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
		// The function is removed after its call, so that a concurrent FreeWhenIdle does not overtake it.
		g.deferred = slices.Delete(g.deferred, 0, 1)
		g.reclaiming = false
		g.mu.Unlock()
	}
	return false, err
}
