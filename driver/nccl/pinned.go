package nccl

import (
	"errors"
	"unsafe"

	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/ranked"
)

// pinned hands out values in pages of host memory that the device reads and writes. The size of T
// is a power of two of at most a page. It may be used by several goroutines.
type pinned[T any] struct {
	mu    ranked.Mutex[pinnedMu]
	pages []uintptr // guarded by mu
	free  []*T      // guarded by mu
}

// pageBytes is what is asked of the host at once.
const pageBytes = 4096

// take hands out a value that is zero. It is called on a thread of the device.
func (p *pinned[T]) take(gpu *cuda.Driver) (*T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// put takes values back that the device uses no more.
func (p *pinned[T]) put(values ...*T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, values...)
}

// close gives the pages back. It is called on a thread of the device.
func (p *pinned[T]) close(gpu *cuda.Driver) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, page := range p.pages {
		errs = append(errs, gpu.MemFreeHost(page))
	}
	p.pages, p.free = nil, nil
	return errors.Join(errs...)
}

// addressOf is where the device finds a value.
func addressOf[T any](value *T) uintptr { return uintptr(unsafe.Pointer(value)) }
