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

// A communicator stands for a group of ranks, and launches the group's calls. For example, the
// ranks 0 and 1 each have one for their group, and launch an AllReduce with it. The communicator
// has an NCCL communicator, and a plane, which connects the ranks outside NCCL. If the group fails,
// the plane keeps the error, called the cause. Other parts have these tasks:
//
//	registrar  registers and deregisters windows (memory that all ranks register with NCCL)
//	recorder   records calls into captures of other libraries
//	comparer   compares calls across ranks
//	faults     finds the cause of a failure and makes the group fail
//	watcher    looks for failures while work is unfinished
//	owner      connects streams and messages with the group
//	suspender  releases the group's memory and restores it
//	teardown   frees the communicator in stages
//	twoLevel   runs collectives within each machine and between machines

// communicator implements driver.Communicator. Its parts share mu, the group's lock. It guards the
// windows, the recordings of captured calls, and writes to the history. It is held during calls to
// NCCL, because NCCL permits only one thread at a time in a communicator.
type communicator struct {
	// Launches use mainly the fields of this block, which share few cache lines.

	device            *Device
	plane             control.Plane // connects the ranks outside NCCL
	comparisonEnabled atomic.Bool   // set by SetCheck
	isClosing         atomic.Bool   // set by Close
	isLevel           bool          // set for a communicator that a two-level group uses
	mu                groupLock
	busy              stream.BusyStreams // streams with unfinished work of the group
	history           history            // the last calls

	driver.Decisions
	suspender

	cfg driver.GroupConfig
	// lockPosition determines the order in which a goroutine locks several communicators.
	lockPosition uint64
	members      []*member    // by group rank
	comm         *ncclComm    // NCCL's communicator
	group        stream.Group // &owner
	direct       directPath
	messages     p2p.Messages
	graphs       sync.WaitGroup // counts symmem's open graphs with calls of the group
	windowGraphs atomic.Int64   // number of those with calls on the window path
	runTimer     runTimer

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

func (c *communicator) Named(name string, ordered bool) (driver.Named, error) {
	return c.plane.Named(name, ordered)
}

func (c *communicator) Inspect() driver.Inspection {
	inspection := c.plane.Inspect()
	inspection.StopWord = c.direct.exchange.StopWord()
	return inspection
}

func (c *communicator) Collectives() uint64 { return c.plane.Collectives() }

func (c *communicator) Launched() [driver.Paths]uint64 { return c.history.callCountsByPath() }

func (c *communicator) SetCheck(enabled bool) { c.comparisonEnabled.Store(enabled) }

func (c *communicator) Failed() <-chan struct{} { return c.plane.Failed() }

func (c *communicator) Cause() error { return c.plane.Cause() }

func (c *communicator) CheckPeers() { c.faults.checkPeers() }

// Exchange sends payload to all ranks and returns the payloads of all ranks, by group rank.
// Exchanges in different lanes are independent of each other.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	mustCheck := lane != driver.LaneFault // that lane works after a failure, too
	if mustCheck {
		_ = c.faults.checkKernels() // after a fault of a kernel, plane.Exchange returns the cause
	}

	return c.plane.Exchange(ctx, lane, payload)
}

func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	return c.messages.MessagesBefore(collective)
}

// Handle returns the group's ncclComm_t, or 0 after the group has failed or Close has been called.
func (c *communicator) Handle() uintptr {
	if c.isClosing.Load() || c.plane.Cause() != nil {
		return 0
	}

	return uintptr(c.comm.handle)
}

func (c *communicator) Register(
	ctx context.Context, key driver.SegmentKey, s driver.Segment,
) (driver.Window, error) {
	w, err := c.registrar.register(ctx, key, s)
	if err == nil {
		err = c.registerMachineWindow(ctx, w.(*window))
	}

	if err != nil {
		return nil, err
	}

	return w, nil
}

// UseWindows registers all windows with NCCL, even if the group can use symmem's own kernels.
func (c *communicator) UseWindows(ctx context.Context) error {
	return c.registrar.registerAllWithNCCL(ctx)
}

// Abort makes the group fail with cause, and starts its teardown.
func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.teardown.begin()
}

// Close closes the group and starts its teardown. Before that, it waits for collectives that all
// ranks have launched. Other collectives fail with ErrClosed.
func (c *communicator) Close() error {
	c.isClosing.Store(true)
	c.stages.noteClosed()
	levelsErr := c.twoLevel.close()
	c.finishCollectives()
	unmatchedErr := c.messages.UnmatchedError() // for Sends without a Recv, and the reverse
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		// The error becomes the cause. Close returns it only together with unmatched messages, because
		// either may have led to the other.
		peerErr := c.plane.Fail(c.plane.PeerFault("closing group " + c.cfg.Name()))
		if unmatchedErr != nil {
			unmatchedErr = errors.Join(peerErr, unmatchedErr)
		}
	}

	planeErr := c.plane.Close()
	c.teardown.begin()
	c.watcher.goroutine.Wait()
	c.direct.exchange.NoteGroupClosed()
	return errors.Join(unmatchedErr, planeErr, levelsErr)
}

// maxCloseWaits limits the waits in finishCollectives, because a rank might launch calls forever.
const maxCloseWaits = 3

// finishCollectives waits for collectives that all ranks have launched. It withdraws this rank from
// collectives that some rank has not launched.
func (c *communicator) finishCollectives() {
	for range maxCloseWaits {
		if c.plane.Cause() != nil {
			return
		}

		hasEnded, isRankMissing := awaitWork(c)
		if hasEnded {
			return
		}

		// Withdraw makes launches of the missing ranks fail. It returns false if these ranks have
		// just launched the collective. The collective can then complete, so wait again.
		hasWithdrawn := c.plane.Withdraw()
		if hasWithdrawn || !isRankMissing {
			return
		}
	}
}

// awaitWork waits until the group's work has ended or cannot complete, but no longer than the
// group's timeout. hasEnded is set if no work is unfinished. isRankMissing is set if some rank has
// not launched the last collective, or has failed.
func awaitWork(c *communicator) (hasEnded, isRankMissing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	isDone := func() bool {
		ticket, _ := c.history.lastCall() // number of the last collective in the group
		hasEnded = isIdle(&c.mu, &c.busy)
		isRankMissing = !hasEnded && !c.faults.canComplete(ticket)
		return hasEnded || isRankMissing || c.messages.HasUnanswered() || c.plane.Cause() != nil
	}
	_ = gpu.Poll(ctx, isDone) // after a timeout, the results are those of the last poll
	if !hasEnded {
		hasEnded = isIdle(&c.mu, &c.busy) // the work may have ended since the last poll
	}

	return hasEnded, isRankMissing
}
