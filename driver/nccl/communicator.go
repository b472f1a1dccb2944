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

// communicator implements driver.Communicator and launches calls. Its parts have other tasks:
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
//
// All parts use mu. It guards the windows, the recordings and writes to the history. It is held
// during calls to NCCL, which permits only one thread at a time.
type communicator struct {
	// Launches use only these fields, which share few cache lines.

	device            *Device
	plane             control.Plane
	comparisonEnabled atomic.Bool
	isClosing         atomic.Bool
	isLevel           bool // this is a level of a two-level group (see twoLevel)
	mu                groupLock
	busy              stream.BusyStreams
	history           history

	driver.Decisions
	suspender

	cfg          driver.GroupConfig
	lockPosition uint64 // order in which communicators are locked
	members      []*member
	comm         *ncclComm
	group        stream.Group
	direct       directPath
	messages     p2p.Messages
	graphs       sync.WaitGroup // symmem's open graphs with calls of the group
	windowGraphs atomic.Int64   // those with calls that use windows
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

func (c *communicator) Exchange(
	ctx context.Context, lane driver.Lane, payload []byte,
) ([][]byte, error) {
	if lane != driver.LaneFault {
		_ = c.faults.checkKernels() // a fault makes the exchange fail
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

func (c *communicator) UseWindows(ctx context.Context) error {
	return c.registrar.registerAllWithNCCL(ctx)
}

func (c *communicator) Abort(cause error) {
	c.plane.Abort(cause)
	c.teardown.begin()
}

// Close waits for collectives that all ranks have launched. Other collectives fail with ErrClosed.
func (c *communicator) Close() error {
	c.isClosing.Store(true)
	c.stages.noteClosed()
	levelsErr := c.twoLevel.close()
	for waits := 0; waits < maxCloseWaits && c.plane.Cause() == nil; waits++ {
		allEnded, isRankMissing := c.finishWork()
		// After Withdraw, late ranks get an error. Withdraw returns false if the last missing rank
		// has just launched the collective, so wait again.
		if allEnded || c.plane.Withdraw() || !isRankMissing {
			break
		}
	}
	unmatchedErr := c.messages.UnmatchedError()
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		peerErr := c.plane.Fail(c.plane.PeerFault("closing group " + c.cfg.Name()))
		if unmatchedErr != nil {
			unmatchedErr = errors.Join(peerErr, unmatchedErr)
		}
	}
	err := c.plane.Close()
	c.teardown.begin()
	c.watcher.goroutine.Wait()
	c.direct.exchange.NoteGroupClosed()
	return errors.Join(unmatchedErr, err, levelsErr)
}

// maxCloseWaits limits the waits in Close, because a rank might launch calls forever.
const maxCloseWaits = 3

// finishWork waits for collectives that can still complete. isRankMissing is set if some rank has
// not launched the last collective.
func (c *communicator) finishWork() (allEnded, isRankMissing bool) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	_ = gpu.Poll(ctx, func() bool {
		ticket, _ := c.history.lastCall()
		allEnded = isIdle(&c.mu, &c.busy)
		isRankMissing = !allEnded && !c.faults.canComplete(ticket)
		return allEnded || isRankMissing || c.messages.HasUnanswered() || c.plane.Cause() != nil
	})
	return allEnded || isIdle(&c.mu, &c.busy), isRankMissing
}
