package gpu

import (
	"errors"
	"slices"
)

// left is unfinished work of a closed stream or an ended group.
type left struct{ ended func() bool }

// Leave notes such work, and how to ask whether it has ended: from any goroutine, any number of
// times, until it has.
func (g *GPU) Leave(ended func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = append(g.left, &left{ended})
}

// Keeps reports whether memory that kernels may use stays mapped: while work that was left (Leave)
// is unfinished, and for good if a kernel is stuck. CUDA may unmap memory under a kernel, which
// then costs the process its context, or wait for the whole device first.
func (g *GPU) Keeps() bool {
	if Stuck.Load() {
		return true
	}
	for {
		g.mu.Lock()
		if len(g.left) == 0 {
			g.mu.Unlock()
			return false
		}
		work := g.left[0]
		g.mu.Unlock()
		if !work.ended() {
			return true
		}
		// Work that was left in another way and has ended is in the list by now, so look again.
		g.mu.Lock()
		g.left = slices.DeleteFunc(g.left, func(l *left) bool { return l == work })
		g.mu.Unlock()
	}
}

// GiveBack calls what gives memory back: now, or in a Reclaim, if the memory is kept or something
// before it has yet to be given back.
func (g *GPU) GiveBack(free func() error) error {
	keeps := g.Keeps()
	g.mu.Lock()
	if keeps || len(g.kept) > 0 {
		g.kept = append(g.kept, free)
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	return free()
}

// Reclaim gives back, in order, what GiveBack has put off, if it is kept no more, and reports
// whether nothing is left. The caller holds no lock of the backend.
func (g *GPU) Reclaim() (all bool, err error) {
	for !g.Keeps() {
		g.mu.Lock()
		if len(g.kept) == 0 || g.reclaiming {
			all = len(g.kept) == 0
			g.mu.Unlock()
			return all, err
		}
		g.reclaiming = true
		free := g.kept[0]
		g.mu.Unlock()
		err = errors.Join(err, free())
		g.mu.Lock()
		g.kept = slices.Delete(g.kept, 0, 1) // only now: what comes later must not overtake it
		g.reclaiming = false
		g.mu.Unlock()
	}
	return false, err
}
