package host

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/control/shm"
	"symmem/internal/sys"
)

var _ driver.SuspendableCommunicator = (*communicator)(nil)

// communicator moves data between the ranks of a group, which shm.Group synchronizes.
//
// Launch gives each collective a ticket, its position in the group's order, and collectives run one
// at a time in this order. Only the running collective may use mover, split, normalizer and the
// barriers of shm.Group.
type communicator struct {
	shm.Group

	checkCalls   atomic.Bool
	turns        turns
	callCounts   [driver.Paths]uint64 // guarded by Mu
	captureCount atomic.Uint64        // captures that contain calls of the group

	device     *Device
	cfg        driver.GroupConfig
	tuning     tuning
	messages   messages
	registry   // provides Register
	pipes      unsafe.Pointer
	mover      mover
	split      splitExchange
	normalizer normalizer
}

// Connect joins a group and maps the memory that its ranks share.
func (d *Device) Connect(
	ctx context.Context, group driver.GroupConfig,
) (driver.Communicator, error) {
	size := len(group.Ranks)
	group = group.WithTimeout(d.cfg.Timeout)
	c := &communicator{device: d, cfg: group}
	c.turns.mu = &c.Mu
	c.turns.passed = make(chan struct{})
	c.registry = registry{
		device: d, group: &c.Group, cfg: &c.cfg, windows: map[driver.SegmentKey]*window{},
	}
	c.messages.init(c, size)
	c.split.mover = &c.mover
	c.split.registry = &c.registry
	c.checkCalls.Store(group.Check)
	if err := c.Join(ctx, d.machine, group, dataBytes(size)); err != nil {
		return nil, group.JoinError(err)
	}

	d.groupTimeouts.Store(group.Timeout, nil)
	c.mover.init(&c.Group, &c.cfg)
	c.pipes = unsafe.Add(c.Data(), size*stagingBytes) // after the staging buffers
	c.tuning = newTuning(size, c.Processors())
	return c, nil
}

func (c *communicator) pipe(src, dst int) *sharedPipe {
	return (*sharedPipe)(unsafe.Add(c.pipes, uintptr(src*c.Size()+dst)*unsafe.Sizeof(sharedPipe{})))
}

func (c *communicator) SetCheck(on bool) { c.checkCalls.Store(on) }

func (c *communicator) Launched() [driver.Paths]uint64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.callCounts
}

// PrepareSuspend returns ErrBusy if this rank has incomplete messages.
func (c *communicator) PrepareSuspend() error {
	if err := c.BeginUse(); err != nil {
		return err
	}

	defer c.EndUse()
	if err := c.messages.readArrived(); err != nil {
		return err
	}

	if c.messages.hasIncomplete() {
		return fmt.Errorf("a message of group %s has not been received: %w", c.cfg.Name(),
			driver.ErrBusy)
	}

	return nil
}

// Suspend frees pages of the shared memory: this rank's staging buffers and the frames of its
// outgoing messages.
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
	free(unsafe.Add(c.Data(), rank*stagingBytes), stagingBytes)
	for receiver := range c.Size() {
		frames := &c.pipe(rank, receiver).frames
		free(unsafe.Pointer(frames), int64(unsafe.Sizeof(*frames)))
	}

	return s, errors.Join(errs...)
}

// Resume does nothing: the kernel allocates new pages on access.
func (c *communicator) Resume(context.Context) error { return nil }

// Close finishes this rank's Sends, leaves the group, and releases its memory.
func (c *communicator) Close() error {
	sendErr := c.messages.waitUntilSent()
	hadFailed := c.Cause() != nil
	c.CheckPeers() // makes the group fail if a peer has failed
	peerFault := c.Cause()
	lastTicket, isFirstClose := c.LeaveGroup()
	if !isFirstClose {
		return nil
	}

	var unmatchedErr error
	if !hadFailed {
		unmatchedErr = c.messages.unmatchedError()
		if unmatchedErr != nil {
			unmatchedErr = errors.Join(peerFault, unmatchedErr) // either may have caused the other
		}
	}

	releaseErr := c.releaseAfter(lastTicket)
	return errors.Join(sendErr, unmatchedErr, releaseErr)
}

// releaseAfter releases the group's memory when the last collective has ended. After twice the
// group's timeout, it returns a TimeoutError and leaves the release to a goroutine.
func (c *communicator) releaseAfter(lastTicket uint64) error {
	timeout := 2 * c.cfg.Timeout.Get()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	nextTicket := lastTicket + 1
	if c.turns.waitForTurnUntil(nextTicket, ctx.Done()) {
		return c.release()
	}

	go func() {
		c.turns.waitForTurn(nextTicket)
		_ = c.release() // Close has already returned
	}()
	return &driver.TimeoutError{
		InCall: "closing group " + c.cfg.Name() +
			": earlier work of this rank still blocks a collective",
		Waited: timeout,
	}
}

func (c *communicator) release() error {
	c.device.groupTimeouts.Delete(c.cfg.Timeout)
	unmapErr := c.registry.unmapAll()
	releaseErr := c.Group.Release()
	return errors.Join(unmapErr, releaseErr)
}
