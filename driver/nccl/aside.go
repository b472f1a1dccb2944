package nccl

import (
	"fmt"
	"sync"

	"symmem/internal/cuda"
)

// aside is a stream of a device for work of the backend's own, which waits for nothing that callers
// queue. Its methods are called on a thread of the device.
type aside struct {
	mu     sync.Mutex
	stream cuda.Stream // made at the first use; guarded by mu
	before uint64      // the streams given up before it was made; guarded by mu
}

// run queues work and waits for it, up to the device's timeout.
func (a *aside) run(d *Device, queue func(on cuda.Stream) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	// Kernels that do not end may hold it up since it was made.
	if before := stuck.Load(); a.stream == 0 || before != a.before {
		stream, err := d.createStream()
		if err != nil {
			return err
		}
		a.stream, a.before = stream, before
	}
	if err := queue(a.stream); err != nil {
		return err
	}
	err := d.within(d.cfg.Timeout, func() (bool, error) { return d.cuda.StreamQuery(a.stream) })
	if err != nil {
		return fmt.Errorf("waiting for a stream of the device's own: %w", err)
	}
	return nil
}

// zero fills memory with zeros.
func (a *aside) zero(d *Device, address uintptr, bytes int64) error {
	return a.run(d, func(on cuda.Stream) error {
		return d.cuda.MemsetD8Async(address, 0, bytes, on)
	})
}

// copy copies memory.
func (a *aside) copy(d *Device, dst, src uintptr, bytes int64) error {
	return a.run(d, func(on cuda.Stream) error {
		if bytes == 0 {
			return nil
		}
		return d.cuda.MemcpyAsync(dst, src, bytes, on)
	})
}

// write writes a word.
func (a *aside) write(d *Device, word uintptr, value uint32) error {
	return a.run(d, func(on cuda.Stream) error {
		return d.cuda.StreamWriteValue(on, word, value)
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
