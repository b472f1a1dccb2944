package gpu

import (
	"errors"
	"slices"
)

// unfinished tracks work that outlives its stream, its group or the wait for it.
type unfinished struct{ ended func() bool }

// Leave registers unfinished work. ended reports whether it has ended; it may be called from any
// goroutine and any number of times until it returns true.
func (g *GPU) Leave(ended func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unfinished = append(g.unfinished, &unfinished{ended})
}

// Keeps reports whether memory that kernels may use has to stay mapped: until all work registered
// with Leave has ended, and forever if a kernel is stuck. CUDA might unmap memory under a running
// kernel, which destroys the context, or wait for the whole device first.
func (g *GPU) Keeps() bool {
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
		// Closing the stream makes ended return true, but registers the stream's work anew first. So
		// the list has to be read again.
		g.mu.Lock()
		g.unfinished = slices.DeleteFunc(g.unfinished, func(u *unfinished) bool { return u == work })
		g.mu.Unlock()
	}
}

// GiveBack calls free now, or in a later Reclaim if memory has to stay mapped (Keeps) or an earlier
// free is still deferred.
func (g *GPU) GiveBack(free func() error) error {
	keeps := g.Keeps()
	g.mu.Lock()
	if keeps || len(g.deferred) > 0 {
		g.deferred = append(g.deferred, free)
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	return free()
}

// Reclaim calls the functions that GiveBack has deferred, in order, once memory need not stay
// mapped. It reports whether none is left. The caller must hold no lock of the backend.
func (g *GPU) Reclaim() (all bool, err error) {
	for !g.Keeps() {
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
		// Not earlier, or a GiveBack during the call would run its function out of order.
		g.deferred = slices.Delete(g.deferred, 0, 1)
		g.reclaiming = false
		g.mu.Unlock()
	}
	return false, err
}
