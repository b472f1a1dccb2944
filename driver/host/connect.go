package host

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"symmem/driver"
	"symmem/internal/sys"
)

var _ driver.SuspendableCommunicator = (*communicator)(nil)

// Connect joins a group.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	n := len(group.Ranks)
	group = group.WithTimeout(d.cfg.Timeout)
	c := &communicator{device: d, cfg: group}
	c.turns.mu, c.turns.passed = &c.Mu, make(chan struct{})
	c.registry.init(d, &c.Group, &c.cfg)
	c.messages.init(c, n)
	c.split.mover, c.split.registry = &c.mover, &c.registry
	c.check.Store(group.Check)
	if err := c.Join(ctx, d.machine, group, dataBytes(n)); err != nil {
		return nil, fmt.Errorf("connecting group %s: %w", group.Name(), err)
	}
	d.limits.Store(group.Timeout, nil)
	c.setData()
	c.tuning = newTuning(n, c.Processors())
	return c, nil
}

// Close leaves the group after the peers have received or stored all messages from this rank. If
// earlier work of this rank blocks a collective, Close returns a timeout error, and the group's
// memory stays mapped until that work completes.
func (c *communicator) Close() error {
	lost := c.messages.flush(c)
	known := c.Cause() != nil
	c.CheckPeers()
	fault := c.Cause()
	last, left := c.LeaveGroup()
	if !left {
		return nil
	}
	var unmatched error
	if !known {
		unmatched = c.messages.errUnmatched(c)
	}
	if unmatched != nil && fault != nil {
		// Either error may have caused the other.
		unmatched = errors.Join(fault, unmatched)
	}
	patience := 2 * c.cfg.Timeout.Get()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.turns.awaitUntil(last+1, ctx.Done()) {
		return errors.Join(lost, unmatched, c.release())
	}
	go func() {
		c.turns.await(last + 1)
		_ = c.release() // Close has already returned
	}()
	return errors.Join(lost, unmatched, &driver.TimeoutError{
		InCall: "closing group " + c.cfg.Name() + ": earlier work of this rank still " +
			"blocks a collective", Waited: patience,
	})
}

func (c *communicator) release() error {
	c.device.limits.Delete(c.cfg.Timeout)
	return errors.Join(c.registry.unmapAll(), c.Release())
}

// PrepareSuspend returns ErrBusy if a message has not been received.
func (c *communicator) PrepareSuspend() error {
	if err := c.BeginUse(); err != nil {
		return err
	}
	defer c.EndUse()
	m, pending := &c.messages, false
	for i := range m.recvPipes {
		in := &m.recvPipes[i]
		if err := in.drain(nil); err != nil {
			return err
		}
		in.mu.Lock()
		pending = pending || len(in.incoming) > 0
		in.mu.Unlock()
		pending = pending || m.sendPipes[i].backlogDone() != nil
	}
	c.Counts.Mu.Lock()
	pending = pending || len(m.unfinished) > 0 || len(m.matcher.Unclaimed()) > 0
	c.Counts.Mu.Unlock()
	if pending {
		return fmt.Errorf("a message of group %s has not been received: %w", c.cfg.Name(),
			driver.ErrBusy)
	}
	return nil
}

// Suspend frees the pages of this rank's staging buffers and frames. The system allocates new pages
// at the next access.
func (c *communicator) Suspend(context.Context) (driver.Suspension, error) {
	var s driver.Suspension
	if err := c.BeginUse(); err != nil {
		return s, err
	}
	defer c.EndUse()
	rank := c.cfg.Rank
	released, err := sys.FreePages(unsafe.Add(c.Data(), rank*2*stageBytes), 2*stageBytes)
	errs := []error{err}
	s.Released = released
	for dst := range c.Size() {
		frames := &c.pipe(rank, dst).frames
		released, err := sys.FreePages(unsafe.Pointer(frames), int64(unsafe.Sizeof(*frames)))
		s.Released += released
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// Resume does nothing, because pages are allocated on access.
func (c *communicator) Resume(context.Context) error { return nil }
