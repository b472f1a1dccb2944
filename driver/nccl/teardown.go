package nccl

import (
	"context"
	"errors"
)

// tearDown ends NCCL's part. It runs on a goroutine of its own, since NCCL waits for graphs to be
// closed.
//
// After a fault the kernels that wait for others are told to end first. Where NCCL can do that
// without giving up the communicator (Revoke, from 2.28.7), windows are deregistered then: Abort
// alone leaks their memory until the process ends before 2.29.7.
func (c *communicator) tearDown(failed bool) {
	defer close(c.tornDown)
	defer c.forget()
	end := c.device.nccl.CommDestroy
	if failed && !c.revoke() {
		end = c.device.nccl.CommAbort
	} else if c.drain() == nil {
		c.mu.Lock()
		c.tearing = c.device.do(c.deregisterAll)
		c.mu.Unlock()
		c.settled.Do(func() { close(c.quiet) })
		c.graphs.Wait()
	}
	err := c.device.do(func() error { return end(c.handle) })
	c.graphs.Wait()
	c.tearing = errors.Join(c.tearing, err, c.drain(), c.mailboxes.close())
	c.settled.Do(func() { close(c.quiet) })
}

// drain waits until no stream has work of the communicator any more, and ends messages that nobody
// answers.
func (c *communicator) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), endingTime)
	defer cancel()
	return poll(ctx, func() bool {
		c.releaseMessages()
		return c.busy.settle()
	})
}

// revoke ends the kernels and blocked calls of the communicator, if this NCCL can.
func (c *communicator) revoke() bool {
	d := c.device
	return d.nccl.Has("ncclCommRevoke") &&
		d.do(func() error { return d.nccl.CommRevoke(c.handle) }) == nil
}

// deregisterAll takes back windows and local registrations. c.mu is held.
func (c *communicator) deregisterAll() error {
	var errs []error
	for _, w := range c.windows {
		if w.handle != 0 {
			errs = append(errs, c.device.nccl.WindowDeregister(c.handle, w.handle))
			w.handle = 0
		}
	}
	for s, registration := range c.local {
		errs = append(errs, c.device.nccl.Deregister(c.handle, registration))
		delete(c.local, s)
	}
	return errors.Join(errs...)
}

// forget takes the communicator off the device's list.
func (c *communicator) forget() {
	c.device.mu.Lock()
	defer c.device.mu.Unlock()
	delete(c.device.communicators, c)
}
