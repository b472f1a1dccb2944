package stream

import (
	"errors"
	"fmt"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
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
	// GivenUp tells that a stream was closed whose work does not end. CUDA waits for that wherever it
	// gives memory back, so the device leaves its own to the end of the process.
	GivenUp atomic.Bool
	// Order makes the order of streams one of Go's memory model: host functions read it before and
	// add to it after their work, and who learns that work is done reads it.
	Order atomic.Uint64
	pool  pool

	mu     ranked.Mutex[streamsMu]
	graphs map[*Graph]struct{} // open ones; guarded by mu
	points []*Point            // of graphs of other libraries; guarded by mu
}

// NewStream makes a stream.
func (d *Streams) NewStream() (*Stream, error) {
	s := &Stream{streams: d, gpu: d.GPU}
	err := d.GPU.Do(func() (err error) {
		s.CUDA, err = d.GPU.CUDA.StreamCreate(true)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("making a stream: %w", err)
	}
	return s, nil
}

// Adopt makes a stream of one that another library has made.
func (d *Streams) Adopt(handle uintptr) (*Stream, error) {
	s := &Stream{
		streams: d, gpu: d.GPU, CUDA: cuda.Stream(handle), adopted: true, behind: Event{streams: d},
	}
	d.GPU.Guests.Store(true)
	if _, err := s.Captured(); err != nil {
		return nil, fmt.Errorf("adopting stream %#x: %w", handle, err)
	}
	return s, nil
}

// Own returns the stream behind the interface.
func (d *Streams) Own(on driver.Stream) (*Stream, error) {
	if s, ok := on.(*Stream); ok && s != nil && s.streams == d {
		return s, nil
	}
	return nil, errForeign
}

var errForeign = errors.New("the stream is of another device")

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
	var open []*Graph
	for g := range d.graphs {
		open = append(open, g)
	}
	d.mu.Unlock()
	var errs []error
	for _, g := range open {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// Close destroys the events that nobody uses. It is called on a thread of the context.
func (d *Streams) Close() error { return d.pool.drain(d.GPU.CUDA) }
