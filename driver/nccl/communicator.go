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

// communicator connects the ranks of a group: NCCL's communicator carries data, a control plane
// everything else.
//
// It launches calls. Each of its other jobs has a type with the fields that the job needs:
//
//	registrar  registers and deregisters windows
//	recorder   records calls into captures of other libraries
//	comparer   compares calls across ranks
//	faults     finds the cause of a failure and fails the group
//	watcher    looks for faults while work is unfinished
//	owner      implements the interfaces that streams and messages use
//	teardown   ends the communicator; stages are closed as it proceeds
//
// States: open; failed, after the first fault of its plane; closed. A failed or closed communicator
// is torn down in the background, in the steps that decide returns.
//
// Locks: mu, which the parts share, is held during calls to NCCL, which permits one thread at a
// time, and while a call gets its position in the order of the group. It guards the windows, the
// recordings and writes to the history. It is locked after the locks of graphs, streams and
// segments, and before all others (see the package comment).
type communicator struct {
	// The fields that every launch uses come first, in few cache lines.

	device *Device
	plane  control.Plane
	check  atomic.Bool
	// closing reports whether Close was called: nothing is launched from then on.
	closing atomic.Bool
	mu      groupLock
	busy    stream.BusyStreams
	history history

	cfg      driver.GroupConfig
	number   uint64 // orders communicators of this rank
	members  []*member
	comm     *ncclComm
	group    stream.Group // &owner
	direct   directPath
	messages p2p.Messages
	graphs   sync.WaitGroup // counts open graphs with calls of this communicator

	registrar registrar
	recorder  recorder
	comparer  comparer
	faults    faults
	watcher   watcher
	owner     owner
	teardown  teardown
	stages    stages
}

// Optional interfaces of package driver.
var (
	_ driver.LazyWindows   = (*communicator)(nil)
	_ driver.MessageCounts = (*communicator)(nil)
	_ driver.Native        = (*communicator)(nil)
	_ driver.Recorder      = (*communicator)(nil)
)

// Named returns this rank's end of a named channel.
func (c *communicator) Named(name string, ordered bool) (driver.Named, error) {
	return c.plane.Named(name, ordered)
}

// Collectives counts the collectives that this rank has launched.
func (c *communicator) Collectives() uint64 { return c.plane.Collectives() }

// Launched counts the calls by their path.
func (c *communicator) Launched() [driver.Paths]uint64 { return c.history.launched() }

// SetCheck switches the comparison of calls.
func (c *communicator) SetCheck(on bool) { c.check.Store(on) }

// Failed returns a channel that is closed when the communicator fails.
func (c *communicator) Failed() <-chan struct{} { return c.plane.Failed() }

// Cause returns the first fault.
func (c *communicator) Cause() error { return c.plane.Cause() }

// CheckPeers fails the communicator if a kernel has reported a fault, or a peer has failed or is
// lost.
func (c *communicator) CheckPeers() { c.faults.checkPeers() }

// Exchange sends payload to every rank and returns the payloads of all.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		_ = c.faults.checkKernels() // if a kernel has reported a fault, the exchange fails
	}
	return c.plane.Exchange(ctx, lane, payload)
}

// MessagesBefore lists the messages that this rank has sent and received before a collective.
func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	return c.messages.Before(collective)
}

// Handle returns the group's ncclComm_t, for calls to NCCL by the program; 0 once the group has
// failed or Close was called.
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
	return c.registrar.register(ctx, key, s)
}

// UseWindows makes NCCL register windows, even if the group did not need them so far.
func (c *communicator) UseWindows(ctx context.Context) error { return c.registrar.useAll(ctx) }

// Abort fails the communicator for all its ranks.
func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.teardown.begin()
}

// Close leaves the group. It waits for work that all ranks have launched; other work ends with
// ErrClosed.
func (c *communicator) Close() error {
	c.closing.Store(true)
	for rounds := 0; rounds < closeRounds && c.plane.Cause() == nil; rounds++ {
		ended, missing := c.finishWork()
		// Unfinished work ends with NCCL's communicator, and ranks that launch their part later must not
		// assume that it succeeds, so this rank withdraws. If the last rank has just launched its part,
		// the others rely on this one, so wait again.
		if ended || c.plane.Withdraw() || !missing {
			break
		}
	}
	unmatched := c.messages.Unmatched()
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		fault := c.plane.Fail(c.plane.PeerFault("closing group " + c.cfg.Name()))
		if unmatched != nil {
			// Either may be the cause of the other: a peer that failed leaves messages unmatched, and a
			// peer may have failed because this rank did not receive.
			unmatched = errors.Join(fault, unmatched)
		}
	}
	err := c.plane.Close()
	c.teardown.begin()
	c.watcher.running.Wait()
	return errors.Join(unmatched, err)
}

// closeRounds bounds how often Close waits again because the last rank has launched its part.
const closeRounds = 3

// finishWork waits for the work of this rank's streams as long as it can be expected to end. It
// reports whether the work has ended, and whether some rank has not launched its part yet.
func (c *communicator) finishWork() (ended, missing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.device.cfg.Timeout)
	defer cancel()
	_ = gpu.Poll(ctx, func() bool { // the results are in ended and missing
		ticket, _ := c.history.last()
		ended = idle(&c.mu, &c.busy)
		missing = !ended && !c.faults.complete(ticket)
		return ended || missing || c.messages.Unanswered() || c.plane.Cause() != nil
	})
	return ended || idle(&c.mu, &c.busy), missing
}
