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

// communicator moves data between the ranks of a group, in the steps of shm.Group, and has that
// type's states.
//
// Launch issues a ticket to each collective. Collectives run one at a time, in the order of their
// tickets. Only the collective whose turn it is may use the steps, the mover and the split
// exchange.
type communicator struct {
	shm.Group

	// Fields that every launch reads come first.

	check    atomic.Bool
	turns    turns
	launched [driver.Paths]uint64 // guarded by Mu
	captures atomic.Uint64        // number of captures that contain calls of the group

	device   *Device
	cfg      driver.GroupConfig
	tuning   tuning
	messages messages
	registry
	pipes unsafe.Pointer
	mover mover
	split splitExchange
}

// Launched returns the number of calls on each path.
func (c *communicator) Launched() [driver.Paths]uint64 {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.launched
}

// SetCheck enables or disables the comparison of calls.
func (c *communicator) SetCheck(on bool) { c.check.Store(on) }

func (c *communicator) setData() {
	c.mover.init(&c.Group, &c.cfg)
	c.pipes = unsafe.Add(c.Data(), c.Size()*2*stageBytes)
}

func (c *communicator) pipe(from, to int) *pair {
	return (*pair)(unsafe.Add(c.pipes, uintptr(from*c.Size()+to)*unsafe.Sizeof(pair{})))
}

// PrepareSuspend returns ErrBusy if a message to or from this rank has not been received.
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
	pending = pending || len(m.open) > 0 || len(m.matcher.Unclaimed()) > 0
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
	me := c.cfg.Rank
	released, err := sys.Remove(unsafe.Add(c.Data(), me*2*stageBytes), 2*stageBytes)
	errs := []error{err}
	s.Released = released
	for to := range c.Size() {
		frames := &c.pipe(me, to).frames
		released, err := sys.Remove(unsafe.Pointer(frames), int64(unsafe.Sizeof(*frames)))
		s.Released += released
		errs = append(errs, err)
	}
	return s, errors.Join(errs...)
}

// Resume does nothing, because the pages are allocated on access.
func (c *communicator) Resume(context.Context) error { return nil }
