package gpu

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/ranked"
)

// Pinned allocates values in page-locked host memory that the device can access. The size of T must
// divide pageBytes. Pinned is safe for concurrent use.
type Pinned[T any] struct {
	Mu    ranked.Mutex[pinnedMu] // guards the following fields
	pages []uintptr
	free  []*T
}

const pageBytes = 4096

// Take allocates a zero value. The context must be current on the calling thread.
func (p *Pinned[T]) Take(api *cuda.Driver) (*T, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if len(p.free) == 0 {
		page, err := api.MemAllocHost(pageBytes)
		if err != nil {
			return nil, err
		}

		p.pages = append(p.pages, page)
		memory := dl.Bytes(page, pageBytes)
		for offset := uintptr(0); offset < pageBytes; offset += unsafe.Sizeof(*new(T)) {
			p.free = append(p.free, (*T)(unsafe.Pointer(&memory[offset])))
		}
	}

	last := len(p.free) - 1
	value := p.free[last]
	p.free = p.free[:last]
	var zero T
	*value = zero
	return value, nil
}

// Put frees values. The device must not use them any more.
func (p *Pinned[T]) Put(values ...*T) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.free = append(p.free, values...)
}

// Close frees the host memory. The context must be current on the calling thread.
func (p *Pinned[T]) Close(api *cuda.Driver) error {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var errs []error
	for _, page := range p.pages {
		errs = append(errs, api.MemFreeHost(page))
	}

	p.pages, p.free = nil, nil
	return errors.Join(errs...)
}

// AddressOf returns the address at which the device accesses a value that Pinned allocated.
func AddressOf[T any](value *T) uintptr { return uintptr(unsafe.Pointer(value)) }

// Word is a 32-bit value in page-locked host memory that streams can write and wait for.
type Word uint32

// Set writes the value atomically.
func (w *Word) Set(value uint32) { atomic.StoreUint32((*uint32)(w), value) }

// Value reads the value atomically.
func (w *Word) Value() uint32 { return atomic.LoadUint32((*uint32)(w)) }

// Address returns the address at which the device accesses the word.
func (w *Word) Address() uintptr { return AddressOf(w) }
