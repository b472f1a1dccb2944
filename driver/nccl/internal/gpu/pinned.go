package gpu

import (
	"errors"
	"unsafe"

	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/ranked"
)

// Pinned hands out values in pages of host memory that the device reads and writes. The size of T
// is a power of two of at most a page. It may be used by several goroutines.
type Pinned[T any] struct {
	Mu    ranked.Mutex[pinnedMu]
	pages []uintptr // guarded by Mu
	free  []*T      // guarded by Mu
}

// pageBytes is the unit in which host memory is allocated.
const pageBytes = 4096

// Take hands out a value that is zero. It is called on a thread of the context.
func (p *Pinned[T]) Take(gpu *cuda.Driver) (*T, error) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	if len(p.free) == 0 {
		page, err := gpu.MemAllocHost(pageBytes)
		if err != nil {
			return nil, err
		}
		p.pages = append(p.pages, page)
		memory := dl.Bytes(page, pageBytes)
		for at := uintptr(0); at < pageBytes; at += unsafe.Sizeof(*new(T)) {
			p.free = append(p.free, (*T)(unsafe.Pointer(&memory[at])))
		}
	}
	last := len(p.free) - 1
	taken := p.free[last]
	p.free = p.free[:last]
	*taken = *new(T)
	return taken, nil
}

// Put takes values back that the device uses no more.
func (p *Pinned[T]) Put(values ...*T) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.free = append(p.free, values...)
}

// Close gives the pages back. It is called on a thread of the context.
func (p *Pinned[T]) Close(gpu *cuda.Driver) error {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	var errs []error
	for _, page := range p.pages {
		errs = append(errs, gpu.MemFreeHost(page))
	}
	p.pages, p.free = nil, nil
	return errors.Join(errs...)
}

// AddressOf is where the device finds a value.
func AddressOf[T any](value *T) uintptr { return uintptr(unsafe.Pointer(value)) }
