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

// Connect joins a group and allocates this rank's part of its shared memory.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	n := len(group.Ranks)
	group = group.WithTimeout(d.cfg.Timeout)
	c := &communicator{device: d, cfg: group}
	c.turns.mu = &c.Mu
	c.turns.passed = make(chan struct{})
	c.registry.setGroup(d, &c.Group, &c.cfg)
	c.messages.init(c, n)
	c.split.mover = &c.mover
	c.split.registry = &c.registry
	c.checkCalls.Store(group.Check)
	if err := c.Join(ctx, d.machine, group, dataBytes(n)); err != nil {
		return nil, group.JoinError(err)
	}
	d.groupTimeouts.Store(group.Timeout, nil)
	c.setBuffers()
	c.tuning = newTuning(n, c.Processors())
	return c, nil
}

// Close leaves the group after the peers have received or stored all messages from this rank. If
// earlier work of this rank blocks a collective, Close returns a timeout error, and the group's
// memory stays mapped until that work completes.
func (c *communicator) Close() error {
	sendErr := c.messages.waitUntilSent(c)
	hadFailed := c.Cause() != nil
	c.CheckPeers() // makes the group fail if a peer has failed
	fault := c.Cause()
	lastTicket, isFirstClose := c.LeaveGroup()
	if !isFirstClose {
		return nil
	}
	var unmatchedErr error
	if !hadFailed {
		unmatchedErr = c.messages.unmatchedError(c)
	}
	if unmatchedErr != nil && fault != nil {
		// Either error can be the cause of the other.
		unmatchedErr = errors.Join(fault, unmatchedErr)
	}
	closeTimeout := 2 * c.cfg.Timeout.Get()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if c.turns.waitForTurnUntil(lastTicket+1, ctx.Done()) {
		return errors.Join(sendErr, unmatchedErr, c.releaseMemory())
	}
	go func() {
		c.turns.waitForTurn(lastTicket + 1)
		_ = c.releaseMemory() // Close has already returned
	}()
	return errors.Join(sendErr, unmatchedErr, &driver.TimeoutError{
		InCall: "closing group " + c.cfg.Name() + ": earlier work of this rank still " +
			"blocks a collective", Waited: closeTimeout,
	})
}

// releaseMemory unmaps all memory of the group. This rank's collectives must have ended.
func (c *communicator) releaseMemory() error {
	c.device.groupTimeouts.Delete(c.cfg.Timeout)
	return errors.Join(c.registry.unmapAll(), c.Release())
}

// PrepareSuspend returns ErrBusy if a message of this rank has not been received.
func (c *communicator) PrepareSuspend() error {
	if err := c.BeginUse(); err != nil {
		return err
	}
	defer c.EndUse()
	m := &c.messages
	hasPending := false
	for i := range m.recvPipes { // one pipe of each kind per peer
		pipe := &m.recvPipes[i]
		if err := pipe.readFrames(nil); err != nil {
			return err
		}
		pipe.mu.Lock()
		hasPending = hasPending || len(pipe.incoming) > 0
		pipe.mu.Unlock()
		hasPending = hasPending || m.sendPipes[i].backlogSentChannel() != nil
	}
	c.Counts.Mu.Lock()
	hasPending = hasPending || len(m.unfinishedRecvs) > 0 || len(m.matcher.Unclaimed()) > 0
	c.Counts.Mu.Unlock()
	if hasPending {
		return fmt.Errorf("a message of group %s has not been received: %w", c.cfg.Name(),
			driver.ErrBusy)
	}
	return nil
}

// Suspend frees the pages of this rank's staging buffers and message frames.
func (c *communicator) Suspend(context.Context) (driver.Suspension, error) {
	var s driver.Suspension
	if err := c.BeginUse(); err != nil {
		return s, err
	}
	defer c.EndUse()
	rank := c.cfg.Rank
	const buffersBytes = 2 * stageBytes // a rank has two staging buffers
	releasedBytes, err := sys.FreePages(unsafe.Add(c.Data(), rank*buffersBytes), buffersBytes)
	errs := []error{err}
	s.Released = releasedBytes
	for dst := range c.Size() {
		frames := &c.pipe(rank, dst).frames
		releasedBytes, err := sys.FreePages(unsafe.Pointer(frames), int64(unsafe.Sizeof(*frames)))
		s.Released += releasedBytes
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// Resume does nothing, because the system allocates pages on access.
func (c *communicator) Resume(context.Context) error { return nil }
