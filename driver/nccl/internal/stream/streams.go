package stream

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Streams creates a device's streams and events, and tracks its open graphs.
type Streams struct {
	GPU *gpu.GPU
	// Groups lists the groups of the device that are open or being torn down.
	Groups func() []Group
	// LongestTimeout returns the longest timeout of the device and of its groups.
	LongestTimeout func() time.Duration
	// NewCalls returns an empty call record for a new graph.
	NewCalls func() Calls
	// Capturing counts the streams being captured.
	Capturing atomic.Int32
	// Order makes stream order a happens-before relation in Go's memory model. runHost loads Order
	// before it calls a host function and increments it afterwards. Code that observes the
	// completion of work must load Order afterwards.
	Order atomic.Uint64
	pool  pool

	mu     ranked.Mutex[streamsMu]
	graphs map[*Graph]struct{} // open graphs; guarded by mu
	points []*Point            // points used by graphs of other libraries; guarded by mu
}

// NewStream creates a stream.
func (d *Streams) NewStream() (*Stream, error) {
	handle, err := gpu.Get(d.GPU, d.GPU.CUDA.StreamCreate)
	if err != nil {
		return nil, fmt.Errorf("creating a stream: %w", err)
	}
	return &Stream{streams: d, gpu: d.GPU, CUDA: handle}, nil
}

// Adopt wraps a stream that another library created.
func (d *Streams) Adopt(handle uintptr) (*Stream, error) {
	s := &Stream{
		streams: d, gpu: d.GPU, CUDA: cuda.Stream(handle),
		adoption: adoption{
			adopted: true, streams: d, handle: cuda.Stream(handle), queued: Event{streams: d},
		},
	}
	d.GPU.Adopted.Store(true)
	if _, err := s.IsCapturing(); err != nil {
		return nil, fmt.Errorf("adopting stream %#x: %w", handle, err)
	}
	return s, nil
}

// Lookup returns stream as a *Stream. It returns an error if the stream does not belong to this
// device.
func (d *Streams) Lookup(stream driver.Stream) (*Stream, error) {
	if s, ok := stream.(*Stream); ok && s != nil && s.streams == d {
		return s, nil
	}
	return nil, errForeign
}

var errForeign = errors.New("the stream belongs to another device")

// NewEvent returns a new event.
func (d *Streams) NewEvent() *Event { return &Event{streams: d} }

// keepInCapture ties p's lifetime to the graph into which stream is being captured. If the driver
// cannot report when the graph is destroyed, p stays alive until the device is closed. If stream is
// not being captured, keepInCapture does nothing.
func (d *Streams) keepInCapture(stream cuda.Stream, p *Point) error {
	capture, err := d.GPU.CUDA.CaptureInfo(stream)
	if err != nil || capture.Graph == 0 {
		return err
	}
	err = d.GPU.CUDA.AtGraphEnd(capture.Graph, func() { runtime.KeepAlive(p) })
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.points = append(d.points, p)
		return nil
	}
	return err
}

// runHost runs a host function. If the function panics, runHost reports the panic as an error.
// Finally it writes value to done, the memory word that the stream is waiting for.
func (d *Streams) runHost(work func(), report func(error), done *gpu.Word, value uint32) {
	d.Order.Load()
	driver.GuardHere("work on a stream", work, func(err error) {
		if err != nil {
			report(err)
		}
		d.Order.Add(1)
		done.Set(value)
	})
}

// CloseGraphs closes all open graphs.
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

// Close destroys the unused CUDA events. It must be called on a thread where the context is
// current.
func (d *Streams) Close() error { return d.pool.drain(d.GPU.CUDA) }
