package stream

import (
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
)

// Streams are those of a device, with their events and graphs.
type Streams struct {
	GPU *gpu.GPU
	// Groups lists the groups of the device that are open or being torn down.
	Groups func() []Group
	// NewCalls makes the calls of a graph.
	NewCalls func() Calls
	// Capturing counts the streams that record.
	Capturing atomic.Int32
	// Order makes the order of streams one of Go's memory model: host functions read it before and
	// add to it after their work, and who learns that work is done reads it.
	Order atomic.Uint64
	pool  pool

	mu     ranked.Mutex[streamsMu]
	graphs map[*Graph]struct{} // open ones; guarded by mu
	points []*Point            // of graphs of other libraries; guarded by mu
}

// NewEvent makes an event.
func (d *Streams) NewEvent() *Event { return &Event{streams: d} }

// keep keeps a point as long as the device.
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

// Close destroys the unused events. It is called on a thread of the context.
func (d *Streams) Close() error { return d.pool.drain(d.GPU.CUDA) }
