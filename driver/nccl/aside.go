package nccl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// aside is a stream of a device for work of the backend's own, which waits for nothing that callers
// queue. Its methods are called on a thread of the device.
type aside struct {
	mu     ranked.Mutex[asideMu]
	stream cuda.Stream // made at the first use; guarded by mu
}

// run queues work and waits for it, up to the device's timeout. A stream whose work does not come
// in that time is left with it.
func (a *aside) run(d *Device, queue func(on cuda.Stream) error) error {
	return a.runFor(d, d.cfg.Timeout, queue)
}

// runFor is run with a limit of its own.
func (a *aside) runFor(d *Device, limit time.Duration, queue func(on cuda.Stream) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.open(d); err != nil {
		return err
	}
	if err := queue(a.stream); err != nil {
		return err
	}
	err := d.within(limit, func() (bool, error) { return d.cuda.StreamQuery(a.stream) })
	if errors.Is(err, context.DeadlineExceeded) {
		a.stream = 0
	}
	if err != nil {
		return fmt.Errorf("waiting for a stream of the device's own: %w", err)
	}
	return nil
}

// open makes a stream if there is none. a.mu is held.
func (a *aside) open(d *Device) (err error) {
	if a.stream == 0 {
		a.stream, err = d.cuda.StreamCreate(true)
	}
	return err
}

// zero fills memory with zeros.
func (a *aside) zero(d *Device, address uintptr, bytes int64) error {
	return a.run(d, func(on cuda.Stream) error {
		return d.cuda.MemsetD8Async(address, 0, bytes, on)
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
