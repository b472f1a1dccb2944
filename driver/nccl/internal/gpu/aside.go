package gpu

import (
	"context"
	"errors"
	"fmt"

	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Aside is a stream of a GPU for work of the backend's own, which waits for nothing that callers
// queue. Its methods are called on a thread of the context.
type Aside struct {
	mu     ranked.Mutex[asideMu]
	stream cuda.Stream // made at the first use; guarded by mu
}

// Run queues work and waits for it, up to the GPU's timeout. A stream whose work does not come
// in that time is left with it (GPU.Leave).
func (a *Aside) Run(g *GPU, queue func(on cuda.Stream) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var err error
	if a.stream == 0 {
		a.stream, err = g.CUDA.StreamCreate()
	}
	if err == nil {
		err = queue(a.stream)
	}
	if err != nil {
		return err
	}
	err = Within(g.Timeout, func() (bool, error) { return g.CUDA.StreamQuery(a.stream) })
	if errors.Is(err, context.DeadlineExceeded) {
		left := a.stream
		a.stream = 0
		g.Leave(func() bool {
			var done bool
			err := g.With(func(gpu *cuda.Driver) (err error) {
				done, err = gpu.StreamQuery(left)
				return err
			})
			return done || err != nil
		})
	}
	if err != nil {
		return fmt.Errorf("waiting for a stream of the device's own: %w", err)
	}
	return nil
}

// Zero fills memory with zeros.
func (a *Aside) Zero(g *GPU, address uintptr, bytes int64) error {
	return a.Run(g, func(on cuda.Stream) error {
		return g.CUDA.MemsetD8Async(address, 0, bytes, on)
	})
}

// Close destroys the stream.
func (a *Aside) Close(gpu *cuda.Driver) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stream == 0 {
		return nil
	}
	stream := a.stream
	a.stream = 0
	return gpu.StreamDestroy(stream)
}
