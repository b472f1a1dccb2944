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

	d.groupTimeouts.Store(group.Timeout, nil) // the longest one limits closing a stream
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
		// Report both, because either can be the cause of the other.
		unmatchedErr = errors.Join(fault, unmatchedErr)
	}

	releaseErr := c.releaseAfter(lastTicket)
	return errors.Join(sendErr, unmatchedErr, releaseErr)
}

// releaseAfter releases the group's memory when the collective with the last ticket (number) has
// ended. If that takes too long, it returns a timeout error, and releases the memory later.
func (c *communicator) releaseAfter(lastTicket uint64) error {
	timeout := 2 * c.cfg.Timeout.Get()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// No collective has the next ticket. Its turn comes when all collectives have ended.
	nextTicket := lastTicket + 1
	if c.turns.waitForTurnUntil(nextTicket, ctx.Done()) {
		return c.releaseMemory()
	}

	go func() {
		c.turns.waitForTurn(nextTicket)
		_ = c.releaseMemory() // Close has already returned
	}()
	return &driver.TimeoutError{
		InCall: "closing group " + c.cfg.Name() +
			": earlier work of this rank still blocks a collective",
		Waited: timeout,
	}
}

// releaseMemory unmaps all memory of the group. Call it when this rank's collectives have ended.
func (c *communicator) releaseMemory() error {
	c.device.groupTimeouts.Delete(c.cfg.Timeout)
	unmapErr := c.registry.unmapAll()
	releaseErr := c.Release()
	return errors.Join(unmapErr, releaseErr)
}

// PrepareSuspend returns ErrBusy if a message from or to this rank is incomplete.
func (c *communicator) PrepareSuspend() error {
	if err := c.BeginUse(); err != nil {
		return err
	}

	defer c.EndUse()
	isComplete, err := c.messages.areComplete(c)
	if err != nil {
		return err
	}

	if !isComplete {
		return fmt.Errorf("a message of group %s has not been received: %w", c.cfg.Name(),
			driver.ErrBusy)
	}

	return nil
}

// areComplete reports whether all Recvs have ended, no message to this rank is without a Recv, and
// all data of its Sends is in shared memory. It first reads all data that has arrived. The caller
// must have called BeginUse.
func (m *messages) areComplete(c *communicator) (bool, error) {
	hasPending := false
	for i := range m.recvPipes { // there are as many sendPipes
		pipe := &m.recvPipes[i]
		if err := pipe.readFrames(nil); err != nil { // not for a particular Recv
			return false, err
		}

		pipe.mu.Lock()
		isReceiving := len(pipe.incoming) > 0
		pipe.mu.Unlock()
		isSending := m.sendPipes[i].backlogSentChannel() != nil
		if isReceiving || isSending {
			hasPending = true // but read the other pipes, too
		}
	}

	c.Counts.Mu.Lock()
	hasUnmatched := len(m.unfinishedRecvs) > 0 || len(m.matcher.Unclaimed()) > 0
	c.Counts.Mu.Unlock()
	return !hasPending && !hasUnmatched, nil
}

// Suspend frees the pages of this rank's part of the shared memory: its staging buffers, through
// which collectives pass data, and the frames of its pipes, through which it sends messages.
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
