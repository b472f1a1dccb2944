package nccl

import (
	"errors"

	"symmem/internal/nccl"
)

// With Config.LocalRegistration every segment is registered with every communicator of its device
// as soon as it is mapped, and a new communicator takes over all live segments, as PyTorch's
// allocator hooks do it (pytorch #112850). That is local, blocks for nobody, and lets NCCL's plain
// kernels work on the memory without copies. It is made over the second mapping of a segment, so
// it never collides with a window over the first.

// adopt keeps a segment and registers it with the communicators there are.
func (d *Device) adopt(s *segment) error {
	d.mu.Lock()
	d.segments[s] = true
	d.mu.Unlock()
	if !d.cfg.LocalRegistration {
		return nil
	}
	var errs []error
	for _, c := range d.openCommunicators() {
		errs = append(errs, c.registerLocally(s))
	}
	return errors.Join(errs...)
}

// live tells whether a segment is kept, that is, not about to be unmapped.
func (d *Device) live(s *segment) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.segments[s]
}

// abandon forgets a segment, after its local registrations have ended.
func (d *Device) abandon(s *segment) error {
	d.mu.Lock()
	delete(d.segments, s)
	d.mu.Unlock()
	if !d.cfg.LocalRegistration {
		return nil
	}
	var errs []error
	for _, c := range d.openCommunicators() {
		errs = append(errs, c.deregisterLocally(s))
	}
	return errors.Join(errs...)
}

// adoptAll registers the live segments with a new communicator.
func (c *communicator) adoptAll() error {
	if !c.device.cfg.LocalRegistration {
		return nil
	}
	c.device.mu.Lock()
	var live []*segment
	for s := range c.device.segments {
		live = append(live, s)
	}
	c.device.mu.Unlock()
	var errs []error
	for _, s := range live {
		errs = append(errs, c.registerLocally(s))
	}
	return errors.Join(errs...)
}

func (c *communicator) registerLocally(s *segment) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plane.Cause() != nil || c.local[s] != 0 || !c.device.live(s) {
		return nil
	}
	var registration nccl.Registration
	err := c.device.do(func() (err error) {
		registration, err = c.device.nccl.Register(c.handle, s.plainAddress(), s.bytes)
		return err
	})
	if registration != 0 {
		c.local[s] = registration
	}
	return err
}

func (c *communicator) deregisterLocally(s *segment) error {
	if c.plane.Cause() != nil {
		return c.awaitEnd(c.quiet, false)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	registration := c.local[s]
	if registration == 0 {
		return nil
	}
	delete(c.local, s)
	return c.device.do(func() error { return c.device.nccl.Deregister(c.handle, registration) })
}
