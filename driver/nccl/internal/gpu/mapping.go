package gpu

import (
	"errors"

	"symmem/internal/cuda"
)

// Release gives up a handle whose memory is kept by mappings, or not wanted.
func (g *GPU) Release(handle cuda.Handle) { _ = g.CUDA.Release(handle) }

// Map maps an allocation for this GPU alone, at new addresses. It is called on a thread of the
// context.
func (g *GPU) Map(handle cuda.Handle, bytes int64) (uintptr, error) {
	at, err := g.CUDA.AddressReserve(bytes, g.Granularity)
	if err != nil {
		return 0, err
	}
	if err := g.CUDA.Map(at, bytes, handle); err != nil {
		return 0, errors.Join(err, g.CUDA.AddressFree(at, bytes))
	}
	if err := g.CUDA.SetAccess(at, bytes, g.Device); err != nil {
		return 0, errors.Join(err, g.Unmap(at, bytes))
	}
	return at, nil
}

// Unmap takes a Map back. It is called on a thread of the context.
func (g *GPU) Unmap(at uintptr, bytes int64) error {
	return errors.Join(g.CUDA.Unmap(at, bytes), g.CUDA.AddressFree(at, bytes))
}

// MapImported maps what an import gives, which it is called for on a thread of the context.
func (g *GPU) MapImported(bytes int64, imported func() (cuda.Handle, error)) (uintptr, error) {
	return Get(g, func() (uintptr, error) {
		handle, err := imported()
		if err != nil {
			return 0, err
		}
		defer g.Release(handle)
		return g.Map(handle, bytes)
	})
}
