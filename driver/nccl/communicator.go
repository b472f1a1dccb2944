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

// communicator is one rank's handle for a group. mu guards the windows, the recorder and writes to
// the history, and serializes calls to NCCL's communicator.
type communicator struct {
	// The fields that every launch uses come first, in few cache lines.

	device            *Device
	plane             control.Plane // connects the ranks outside NCCL
	comparisonEnabled atomic.Bool   // set by SetCheck
	isClosing         atomic.Bool   // set by Close
	isLevel           bool          // runs parts of a two-level group's collectives
	mu                groupLock
	busy              stream.BusyStreams // with unfinished work of the group
	history           history

	driver.Decisions
	suspender

	cfg          driver.GroupConfig
	lockPosition uint64    // goroutines lock several communicators in ascending order
	members      []*member // by group rank
	comm         *ncclComm
	group        stream.Group // points to owner
	direct       directPath   // runs symmem's own kernels
	messages     p2p.Messages
	openGraphs   sync.WaitGroup // symmem's open graphs with calls of the group
	windowGraphs atomic.Int64   // open graphs with NCCL kernels that access windows
	runTimer     runTimer       // measures calls on the GPU

	twoLevel // collectives that run within each machine, then between machines

	registrar registrar // registers memory of all ranks as windows
	recorder  recorder  // adds calls to CUDA graphs that other libraries capture
	comparer  comparer  // checks that all ranks launch the same calls
	faults    faults    // finds the cause of a failure
	watcher   watcher   // looks for failures while work is unfinished
	owner     owner     // represents the group to streams and messages
	teardown  teardown  // frees the communicator
	stages    stages    // announces the progress of the teardown
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

// Exchange returns the payloads of all ranks, by group rank. Exchanges on different lanes are
// independent.
func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault { // LaneFault also works in a failed group
		_ = c.faults.checkKernels() // plane.Exchange returns the error if a kernel has failed
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

// UseWindows registers all present and future windows with NCCL.
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
		// Close reports the failure of a peer only if messages are unmatched, which it may explain.
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

// finishCollectives waits for the collectives that all ranks have launched. The other collectives
// fail, on this rank and on ranks that launch them later.
func (c *communicator) finishCollectives() {
	for range maxCloseWaits {
		if c.plane.Cause() != nil {
			return
		}

		hasEnded, isRankMissing := awaitWork(c)
		if hasEnded {
			return
		}

		hasRevoked := c.plane.Withdraw() // false if all ranks have launched the last collective
		hasMissingRankLaunched := isRankMissing && !hasRevoked
		if !hasMissingRankLaunched {
			return
		}
	}
}

// awaitWork waits until the group's work has ended or depends on a peer, for at most the group's
// timeout. isRankMissing is set if a rank has failed or has not launched the last collective.
func awaitWork(c *communicator) (hasEnded, isRankMissing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	shouldStop := func() bool {
		lastCollective, _ := c.history.lastCall()
		hasEnded = isIdle(&c.mu, &c.busy)
		isRankMissing = !hasEnded && !c.faults.canComplete(lastCollective)
		if hasEnded || isRankMissing {
			return true
		}

		return c.messages.HasUnanswered() || c.plane.Cause() != nil
	}
	_ = gpu.Poll(ctx, shouldStop) // after a timeout, the results of the last poll are valid
	hasEnded = hasEnded || isIdle(&c.mu, &c.busy)
	return hasEnded, isRankMissing
}
