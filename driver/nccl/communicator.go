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

// communicator is one rank's handle for a group. mu guards the windows and the recorder, and is
// held while a call is recorded in the history and queued.
type communicator struct {
	// The fields that every launch uses come first, in few cache lines.

	device            *Device
	plane             control.Plane // connects the ranks outside NCCL
	comparisonEnabled atomic.Bool   // set by SetCheck
	isClosing         atomic.Bool   // set by Close
	isLevel           bool          // this is a level of a two-level group
	mu                groupLock
	busy              stream.BusyStreams // streams with unfinished work of the group
	history           history

	driver.Decisions // implemented by the plane
	suspender

	cfg          driver.GroupConfig
	lockPosition uint64    // a goroutine locks communicators in order of this value
	members      []*member // by group rank
	comm         *ncclComm
	group        stream.Group // &owner
	direct       directPath   // runs symmem's own kernels
	messages     p2p.Messages
	openGraphs   sync.WaitGroup // counts symmem's open graphs with calls of the group
	windowGraphs atomic.Int64   // counts the openGraphs with NCCL kernels that access windows
	runTimer     runTimer       // measures calls on the GPU

	twoLevel // the levels, if collectives run within each machine and between machines

	registrar registrar // registers memory of all ranks as windows
	recorder  recorder  // records calls in CUDA graphs of other libraries
	comparer  comparer  // checks that all ranks launch the same calls
	faults    faults    // finds the cause of a failure
	watcher   watcher   // looks for failures while work is unfinished
	owner     owner     // the group as streams and messages see it
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
	if err != nil {
		return nil, err
	}

	if err := c.registerMachineWindow(ctx, w); err != nil {
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
// teardown. Other collectives fail with ErrClosed.
func (c *communicator) Close() error {
	c.isClosing.Store(true)
	c.stages.noteCloseCalled()
	levelsErr := c.twoLevel.close()
	c.finishCollectives()
	messagesErr := c.messages.UnmatchedError()
	if c.plane.Cause() == nil && c.plane.PeerFailed() {
		peerErr := c.plane.Fail(c.plane.PeerFault("closing group " + c.cfg.Name()))
		if messagesErr != nil { // perhaps caused by the peer's failure
			messagesErr = errors.Join(peerErr, messagesErr)
		}
	}

	planeErr := c.plane.Close()
	c.teardown.begin()
	c.watcher.goroutine.Wait()
	c.direct.exchange.NoteGroupClosed()
	return errors.Join(messagesErr, planeErr, levelsErr)
}

// finishCollectives waits for the collectives that all ranks have launched. The other collectives
// fail, on this rank and on ranks that launch them later.
func (c *communicator) finishCollectives() {
	const maxWaits = 3 // in case a peer never stops launching
	for range maxWaits {
		if c.plane.Cause() != nil {
			return
		}

		state := awaitWork(c)
		if state == workEnded {
			return
		}

		hasRevoked := c.plane.Withdraw() // false if all ranks have launched the last collective
		if hasRevoked || state != workBlocked {
			return
		}
	}
}

type workState int

const (
	workEnded workState = iota
	workRunning
	workBlocked // a rank has failed, or has not launched the last collective
)

// awaitWork waits until the group's work has ended or depends on a peer, for at most the group's
// timeout.
func awaitWork(c *communicator) (state workState) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout.Get())
	defer cancel()
	_ = gpu.Poll(ctx, func() bool { // state stays valid after a timeout
		state = findWorkState(c)
		return state != workRunning || c.messages.HasUnanswered() || c.plane.Cause() != nil
	})
	if state != workEnded && isIdle(&c.mu, &c.busy) {
		return workEnded
	}

	return state
}

func findWorkState(c *communicator) workState {
	lastCollective, _ := c.history.lastCall()
	switch {
	case isIdle(&c.mu, &c.busy):
		return workEnded
	case !c.faults.canComplete(lastCollective):
		return workBlocked
	default:
		return workRunning
	}
}
