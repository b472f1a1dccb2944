package nccl

import (
	"sync"

	"symmem/internal/cuda"
)

// aside is a stream of a device for work of the backend's own, which waits for nothing that callers
// queue. Its methods are called on a thread of the device.
type aside struct {
	mu     sync.Mutex
	stream cuda.Stream // made at the first use; guarded by mu
}

// run queues work and waits for it.
func (a *aside) run(driver *cuda.Driver, queue func(on cuda.Stream) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stream == 0 {
		var err error
		if a.stream, err = driver.StreamCreate(true); err != nil {
			return err
		}
	}
	if err := queue(a.stream); err != nil {
		return err
	}
	return driver.StreamSynchronize(a.stream)
}

// zero fills memory with zeros.
func (a *aside) zero(driver *cuda.Driver, address uintptr, bytes int64) error {
	return a.run(driver, func(on cuda.Stream) error {
		return driver.MemsetD8Async(address, 0, bytes, on)
	})
}

// copy copies memory.
func (a *aside) copy(driver *cuda.Driver, dst, src uintptr, bytes int64) error {
	return a.run(driver, func(on cuda.Stream) error {
		if bytes == 0 {
			return nil
		}
		return driver.MemcpyAsync(dst, src, bytes, on)
	})
}

// write writes a word.
func (a *aside) write(driver *cuda.Driver, word uintptr, value uint32) error {
	return a.run(driver, func(on cuda.Stream) error {
		return driver.StreamWriteValue(on, word, value)
	})
}

func (a *aside) close(driver *cuda.Driver) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stream == 0 {
		return nil
	}
	stream := a.stream
	a.stream = 0
	return driver.StreamDestroy(stream)
}
