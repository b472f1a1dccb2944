package host

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
)

// Connect joins a group.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	n := len(group.Ranks)
	c := &communicator{
		device: d, cfg: group, payloads: make([]payloadCopy, n),
		passed: make(chan struct{}), windows: map[driver.SegmentKey]*window{},
	}
	c.messages.init(c, n)
	c.split.c = c
	c.check.Store(group.Check)
	if err := c.Join(ctx, d.machine, group, dataBytes(n)); err != nil {
		return nil, fmt.Errorf("connecting group %s: %w", group.Name(), err)
	}
	c.setData()
	c.tuning = newTuning(n, c.Processors())
	return c, nil
}

// Close leaves the group once the peers have taken, or have room for, what was sent to them. A
// collective behind work that does not end keeps the memory of the group mapped until it has.
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
		// Either may explain the other: a peer that failed leaves messages without their other end, and
		// one may have failed because this rank did not receive.
		unmatched = errors.Join(fault, unmatched)
	}
	patience := 2 * c.device.cfg.Timeout
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.awaitTurnUntil(last+1, ctx.Done()) {
		return errors.Join(lost, unmatched, c.release())
	}
	go func() {
		c.awaitTurn(last + 1)
		_ = c.release() // no caller is left to return it to
	}()
	return errors.Join(lost, unmatched, &driver.TimeoutError{
		Doing: "closing group " + c.cfg.Name() + ": work of this rank on a stream, in front of a " +
			"collective, has not ended", Waited: patience,
	})
}

// release unmaps everything that the communicator maps.
func (c *communicator) release() error {
	var errs []error
	c.Mu.Lock()
	for _, w := range c.windows {
		errs = append(errs, w.unmap())
	}
	c.Mu.Unlock()
	return errors.Join(append(errs, c.Release())...)
}
