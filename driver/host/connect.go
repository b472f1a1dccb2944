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

// Connect joins a group and maps the memory that its ranks share.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	size := len(group.Ranks)
	group = group.WithTimeout(d.cfg.Timeout)
	c := &communicator{device: d, cfg: group}
	c.turns.mu = &c.Mu
	c.turns.passed = make(chan struct{})
	c.registry.setGroup(d, &c.Group, &c.cfg)
	c.messages.init(c, size)
	c.split.mover = &c.mover
	c.split.registry = &c.registry
	c.checkCalls.Store(group.Check)
	if err := c.Join(ctx, d.machine, group, dataBytes(size)); err != nil {
		return nil, group.JoinError(err)
	}

	d.groupTimeouts.Store(group.Timeout, nil) // the value is unused
	c.setBuffers()
	c.tuning = newTuning(size, c.Processors())
	return c, nil
}

// Close finishes this rank's Sends and leaves the group. If earlier work blocks a collective, Close
// returns a timeout error, and the group's memory stays mapped until that work completes.
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
		if unmatchedErr != nil {
			unmatchedErr = errors.Join(fault, unmatchedErr) // either may have caused the other
		}
	}

	releaseErr := c.releaseAfter(lastTicket)
	return errors.Join(sendErr, unmatchedErr, releaseErr)
}

// releaseAfter releases the group's memory after the last collective. If this takes twice the
// group's timeout, it returns an error, and a goroutine releases the memory later.
func (c *communicator) releaseAfter(lastTicket uint64) error {
	timeout := 2 * c.cfg.Timeout.Get()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// Collectives take turns in the order of their tickets. The next turn comes after all of them.
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

// releaseMemory must be called after this rank's last collective has ended.
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
	hasIncomplete, err := c.messages.haveIncomplete(c)
	if err != nil {
		return err
	}

	if hasIncomplete {
		return fmt.Errorf("a message of group %s has not been received: %w", c.cfg.Name(),
			driver.ErrBusy)
	}

	return nil
}

// haveIncomplete reads the data that has arrived. It then reports whether the data of a message is
// still in transit, or a message or a Recv is unmatched. The caller must have called BeginUse.
func (m *messages) haveIncomplete(c *communicator) (bool, error) {
	inTransit := false
	for peer := range m.recvPipes {
		pipe := &m.recvPipes[peer]
		if err := pipe.readFrames(untilEmpty); err != nil {
			return false, err
		}

		pipe.mu.Lock()
		isReceiving := len(pipe.incoming) > 0
		pipe.mu.Unlock()
		isSending := m.sendPipes[peer].backlogSentChannel() != nil
		inTransit = inTransit || isReceiving || isSending
	}

	c.Counts.Mu.Lock()
	hasUnmatched := len(m.unfinishedRecvs) > 0 || len(m.matcher.Unclaimed()) > 0
	c.Counts.Mu.Unlock()
	return inTransit || hasUnmatched, nil
}

// Suspend frees the pages of the shared memory that only this rank writes: the staging buffers for
// collectives and the frames of outgoing messages.
func (c *communicator) Suspend(context.Context) (driver.Suspension, error) {
	var s driver.Suspension
	if err := c.BeginUse(); err != nil {
		return s, err
	}

	defer c.EndUse()
	var errs []error
	free := func(memory unsafe.Pointer, bytes int64) {
		releasedBytes, err := sys.FreePages(memory, bytes)
		s.Released += releasedBytes
		errs = append(errs, err)
	}
	rank := c.cfg.Rank
	const buffersBytes = 2 * stageBytes // a rank has two staging buffers
	free(unsafe.Add(c.Data(), rank*buffersBytes), buffersBytes)
	for receiver := range c.Size() {
		frames := &c.pipe(rank, receiver).frames
		free(unsafe.Pointer(frames), int64(unsafe.Sizeof(*frames)))
	}

	return s, errors.Join(errs...)
}

// Resume does nothing: the kernel allocates new pages on access.
func (c *communicator) Resume(context.Context) error { return nil }
