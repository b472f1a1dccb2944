package gpu

import "slices"

// Leave notes work that goes on though its stream was closed, and how to ask whether it has ended:
// from any goroutine, any number of times.
func (g *GPU) Leave(ended func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left = append(g.left, ended)
}

// Keeps reports whether what kernels may use stays mapped: as long as work goes on whose stream was
// closed, and for good where a kernel is stuck. CUDA may unmap memory under a kernel, which then
// costs the process its context, or wait for the whole device first.
func (g *GPU) Keeps() bool {
	if Stuck.Load() {
		return true
	}
	g.mu.Lock()
	left := slices.Clone(g.left)
	g.mu.Unlock()
	return slices.ContainsFunc(left, func(ended func() bool) bool { return !ended() })
}
