package nccl

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// communicator implements driver.Communicator. NCCL and direct kernels (symmem's own) transfer the
// group's data. A control plane connects the ranks for everything else. The communicator launches
// calls, and its parts do the rest:
//
//	registrar  registers and deregisters windows
//	recorder   records calls into captures of other libraries
//	comparer   compares calls across ranks
//	faults     finds the cause of a failure and fails the group
//	watcher    looks for faults while work is unfinished
//	owner      connects streams and messages with the group
//	suspender  releases the group's memory and restores it
//	teardown   frees the communicator in stages
//	twoLevel   runs collectives of a group that spans machines in two levels
//
// A communicator is open at first. It becomes failed after the first fault of its plane, or closed
// after Close. It is then torn down in the background.
//
// The parts share the lock mu. It is held during calls to NCCL, because NCCL permits only one
// thread at a time, and while a call gets its position in the group's order. It guards the windows,
// the recordings and writes to the history. The package comment describes the lock order.
type communicator struct {
	// Every launch uses the first fields, so they are adjacent to occupy few cache lines.

	device *Device
	plane  control.Plane
	check  atomic.Bool
	// closing is set by Close. Nothing is launched once it is set.
	closing atomic.Bool
	// isLevel is set, before the first launch, if the communicator is a level of a two-level group.
	isLevel bool
	mu      groupLock
	busy    stream.BusyStreams
	history history

	driver.Decisions
	suspender

	cfg      driver.GroupConfig
	number   uint64 // position in the lock order of communicators
	members  []*member
	comm     *ncclComm
	group    stream.Group
	direct   directPath
	messages p2p.Messages
	graphs   sync.WaitGroup // symmem's open graphs with calls of this communicator
	// windowGraphs counts those of the graphs that have calls on the window path.
	windowGraphs atomic.Int64

	twoLevel

	registrar registrar
	recorder  recorder
	comparer  comparer
	faults    faults
	watcher   watcher
	owner     owner
	teardown  teardown
	stages    stages
}

var (
	_ driver.Inspector     = (*communicator)(nil)
	_ driver.LazyWindows   = (*communicator)(nil)
	_ driver.MessageCounts = (*communicator)(nil)
	_ driver.Native        = (*communicator)(nil)
	_ driver.Recorder      = (*communicator)(nil)
	_ driver.TwoLevels     = (*communicator)(nil)
)

// Named returns this rank's end of the named channel.
func (c *communicator) Named(name string, ordered bool) (driver.Named, error) {
	return c.plane.Named(name, ordered)
}

// Inspect describes what this rank is waiting for and what the other ranks are doing.
func (c *communicator) Inspect() driver.Inspection { return c.plane.Inspect() }

// Collectives returns the number of collectives that this rank has launched.
func (c *communicator) Collectives() uint64 { return c.plane.Collectives() }

// Launched returns the number of calls on each path.
func (c *communicator) Launched() [driver.Paths]uint64 { return c.history.callsByPath() }

// SetCheck switches the comparison of calls across ranks on or off.
func (c *communicator) SetCheck(on bool) { c.check.Store(on) }

// Failed returns a channel that is closed when the communicator fails.
func (c *communicator) Failed() <-chan struct{} { return c.plane.Failed() }

// Cause returns the group's first fault, or nil.
func (c *communicator) Cause() error { return c.plane.Cause() }

// CheckPeers makes the communicator fail if a kernel has reported a fault, or if a peer is lost
// or has failed.
func (c *communicator) CheckPeers() { c.faults.checkPeers() }

// Exchange sends payload to every rank and returns the payloads of all ranks.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		_ = c.faults.checkKernels() // a reported fault makes the exchange fail
	}
	return c.plane.Exchange(ctx, lane, payload)
}

// MessagesBefore lists the messages that this rank sent and received before a collective.
func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	return c.messages.Before(collective)
}

// Handle returns the group's ncclComm_t, with which the program may call NCCL. It returns 0 after
// the group has failed or Close has been called.
func (c *communicator) Handle() uintptr {
	if c.closing.Load() || c.plane.Cause() != nil {
		return 0
	}
	return uintptr(c.comm.handle)
}

// Register registers a segment with the group.
func (c *communicator) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := c.registrar.register(ctx, key, s)
	if err == nil {
		err = c.registerIntraWindow(ctx, w.(*window))
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// UseWindows registers the group's segments with NCCL, even if the group has a direct path. Later
// calls of Register do the same.
func (c *communicator) UseWindows(ctx context.Context) error {
	return c.registrar.registerAllWithNCCL(ctx)
}

// Abort fails the communicator for all its ranks.
func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.teardown.begin()
}

// Close leaves the group. It waits for work that all ranks have launched. Work that some rank has
// not launched fails with ErrClosed.
func (c *communicator) Close() error {
	c.closing.Store(true)
	levelsErr := c.twoLevel.close()
	for rounds := 0; rounds < closeRounds && c.plane.Cause() == nil; rounds++ {
		ended, missing := c.finishWork()
		// Withdraw prevents that another rank launches its part of unfinished work and expects
		// success. It returns false if the last rank has just launched its part. The other ranks
		// then rely on this rank, so wait again.
		if ended || c.plane.Withdraw() || !missing {
			break
		}
	}
	unmatched := c.messages.Unmatched()
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		fault := c.plane.Fail(c.plane.PeerFault("closing group " + c.cfg.Name()))
		if unmatched != nil {
			// Return both errors, because either may have caused the other.
			unmatched = errors.Join(fault, unmatched)
		}
	}
	err := c.plane.Close()
	c.teardown.begin()
	c.watcher.running.Wait()
	return errors.Join(unmatched, err, levelsErr)
}

// closeRounds limits how often Close waits for work, because the slowest rank may keep launching.
const closeRounds = 3

// finishWork waits for the work of this rank's streams as long as that work can still complete.
// ended reports whether it has completed, and missing whether some rank has not launched its part.
func (c *communicator) finishWork() (ended, missing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	_ = gpu.Poll(ctx, func() bool {
		ticket, _ := c.history.last()
		ended = idle(&c.mu, &c.busy)
		missing = !ended && !c.faults.complete(ticket)
		return ended || missing || c.messages.Unanswered() || c.plane.Cause() != nil
	})
	return ended || idle(&c.mu, &c.busy), missing
}
