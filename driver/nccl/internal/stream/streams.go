package stream

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// Streams holds a device's streams, events and graphs.
type Streams struct {
	GPU *gpu.GPU
	// Groups lists the groups of the device that are open or being torn down.
	Groups func() []Group
	// NewCalls returns an empty record of the group calls in a new graph.
	NewCalls func() Calls
	// Capturing counts the streams being captured.
	Capturing atomic.Int32
	// Order gives stream order a happens-before edge in Go's memory model: each host function loads
	// it before its work and adds to it afterwards; code that observes completion loads it.
	Order atomic.Uint64
	pool  pool

	mu     ranked.Mutex[streamsMu]
	graphs map[*Graph]struct{} // open graphs; guarded by mu
	points []*Point            // events that graphs of other libraries refer to; guarded by mu
}

// NewEvent returns a new event.
func (d *Streams) NewEvent() *Event { return &Event{streams: d} }

// keep keeps p alive until the device is closed.
func (d *Streams) keep(p *Point) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.points = append(d.points, p)
}

// CloseGraphs closes the graphs that are still open.
func (d *Streams) CloseGraphs() error {
	d.mu.Lock()
	open := slices.Collect(maps.Keys(d.graphs))
	d.mu.Unlock()
	var errs []error
	for _, g := range open {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// Close destroys the unused CUDA events. It must be called on one of the GPU's threads (gpu.Do).
func (d *Streams) Close() error { return d.pool.drain(d.GPU.CUDA) }
