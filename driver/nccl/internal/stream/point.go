package stream

import (
	"errors"
	"fmt"
	"runtime"

	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Point is a CUDA event. It goes back to the device when no event has it any more, since events
// have no Close.
type Point struct {
	// streams also keeps Go from putting points next to other small things, and alive with them.
	streams *Streams
	Handle  cuda.Event
}

// NewPoint takes a point that nobody uses, or makes one.
func (d *Streams) NewPoint() (*Point, error) {
	handle, err := d.pool.take(d)
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	p := &Point{d, handle}
	runtime.AddCleanup(p, d.pool.put, handle)
	return p, nil
}

// reached reports whether the stream has come to the point.
func (p *Point) reached() (done bool, err error) {
	err = p.streams.GPU.With(func(gpu *cuda.Driver) error {
		done, err = gpu.EventQuery(p.Handle)
		return err
	})
	runtime.KeepAlive(p)
	p.streams.Order.Load()
	return done, err
}

// pool keeps CUDA events that nobody uses.
type pool struct {
	mu   ranked.Mutex[poolMu]
	free []cuda.Event // guarded by mu
}

func (p *pool) take(d *Streams) (cuda.Event, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		handle := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return handle, nil
	}
	p.mu.Unlock()
	var handle cuda.Event
	err := d.GPU.Do(func() (err error) {
		handle, err = d.GPU.CUDA.EventCreate(cuda.EventDisableTiming)
		return err
	})
	return handle, err
}

func (p *pool) put(handle cuda.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, handle)
}

// drain destroys the events that nobody uses. Those that are still held end with the context.
func (p *pool) drain(driver *cuda.Driver) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, handle := range p.free {
		errs = append(errs, driver.EventDestroy(handle))
	}
	p.free = nil
	return errors.Join(errs...)
}
