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

// communicator is one rank's handle for a group. mu guards windows, recordings of captured calls
// and writes to the history. It also serializes calls to NCCL's communicator.
type communicator struct {
	// The fields that every launch uses come first, in few cache lines.

	device            *Device
	plane             control.Plane // connects the ranks outside NCCL; keeps the error of a failure
	comparisonEnabled atomic.Bool   // set by SetCheck
	isClosing         atomic.Bool   // set by Close
	isLevel           bool          // set for a communicator that a two-level group uses
	mu                groupLock
	busy              stream.BusyStreams // with unfinished work of the group
	history           history

	driver.Decisions
	suspender

	cfg          driver.GroupConfig
	lockPosition uint64    // goroutines lock several communicators in ascending order
	members      []*member // by group rank
	comm         *ncclComm
	group        stream.Group // &owner
	direct       directPath
	messages     p2p.Messages
	graphs       sync.WaitGroup // symmem's open graphs with calls of the group
	windowGraphs atomic.Int64   // open graphs with calls on the window path
	runTimer     runTimer

	twoLevel // runs collectives within each machine, then between machines

	registrar registrar // registers memory of all ranks with NCCL as windows
	recorder  recorder  // adds calls to CUDA graphs that other libraries capture
	comparer  comparer  // checks that all ranks launch the same calls
	faults    faults    // finds the cause of a failure
	watcher   watcher   // looks for failures while work is unfinished
	owner     owner     // represents the group to streams and messages
	teardown  teardown  // frees the communicator
	stages    stages    // channels that announce the progress of the teardown
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

// Exchange returns the payloads of all ranks, by group rank. Lanes are independent channels.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault { // LaneFault also works in a failed group
		_ = c.faults.checkKernels() // a fault makes plane.Exchange fail
	}

	return c.plane.Exchange(ctx, lane, payload)
}

func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	return c.messages.MessagesBefore(collective)
}

// Handle returns the group's ncclComm_t, or 0 after a failure or Close.
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

// UseWindows registers all windows with NCCL, including those of later calls of Register.
func (c *communicator) UseWindows(ctx context.Context) error {
	return c.registrar.registerAllWithNCCL(ctx)
}

func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.teardown.begin()
}

// Close waits for the collectives that all ranks have launched, closes the group and starts its
// teardown. Collectives that some rank has not launched fail with ErrClosed.
func (c *communicator) Close() error {
	c.isClosing.Store(true)
	c.stages.noteClosed()
	levelsErr := c.twoLevel.close()
	c.finishCollectives()
	unmatchedErr := c.messages.UnmatchedError()
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		// A peer's failure is an error of Close only if it may explain unmatched messages.
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

const maxCloseWaits = 3 // in case a peer never stops launching

// finishCollectives waits for the collectives that all ranks have launched, and withdraws this rank
// from the others.
func (c *communicator) finishCollectives() {
	for range maxCloseWaits {
		if c.plane.Cause() != nil {
			return
		}

		hasEnded, isRankMissing := awaitWork(c)
		if hasEnded {
			return
		}

		// Withdraw returns false if the missing ranks have just launched the collective, which can then
		// complete. Otherwise, it makes their launches fail.
		hasWithdrawn := c.plane.Withdraw()
		if hasWithdrawn || !isRankMissing {
			return
		}
	}
}

// awaitWork waits until the group's work has ended or cannot complete, for at most the group's
// timeout. isRankMissing is set if a rank has failed or has not launched the last collective.
func awaitWork(c *communicator) (hasEnded, isRankMissing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	isDone := func() bool {
		lastCollective, _ := c.history.lastCall()
		hasEnded = isIdle(&c.mu, &c.busy)
		isRankMissing = !hasEnded && !c.faults.canComplete(lastCollective)
		return hasEnded || isRankMissing || c.messages.HasUnanswered() || c.plane.Cause() != nil
	}
	_ = gpu.Poll(ctx, isDone) // a timeout leaves the results of the last poll
	if !hasEnded {
		hasEnded = isIdle(&c.mu, &c.busy)
	}

	return hasEnded, isRankMissing
}
