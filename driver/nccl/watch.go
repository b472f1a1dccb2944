package nccl

import (
	"cmp"
	"sync"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/p2p"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// A watcher looks for failures of its group while the group has unfinished work. For example, rank
// 0 has launched collective 7, and then rank 1 crashes. The kernel of rank 0 would wait forever.
// But the watcher of rank 0 checks the group every 2 ms. It finds the crash and makes the group
// fail.
//
// A full check examines everything: the reports of kernels, messages, and the other ranks. A light
// check only reads the reports of symmem's own kernels. Light checks are for busy times, when the
// program has launched calls since the previous check: the launches themselves detect failed ranks.
// The ticket of a collective is its number in the group, such as 7.

const (
	// checkInterval is the time between checks.
	checkInterval = 2 * time.Millisecond

	// replayCheckInterval is the time between checks of an idle group, if another library has
	// captured calls. The library can replay them at any time.
	replayCheckInterval = 20 * time.Millisecond

	// At busy times, one of checksPerFullCheck checks is full.
	checksPerFullCheck = 16
)

// watcher looks for failures in a goroutine while the group has unfinished work, and makes the
// group fail. Its fields belong to the communicator.
type watcher struct {
	cfg      *driver.GroupConfig
	plane    control.Plane // connects the ranks outside NCCL, and knows whether the group has failed
	mu       *groupLock
	busy     *stream.BusyStreams // streams with unfinished work of the group
	history  *history
	comm     *ncclComm
	messages *p2p.Messages
	faults   *faults
	comparer *comparer
	recorder *recorder
	stages   *stages
	teardown *teardown
	runTimer *runTimer

	goroutine sync.WaitGroup // counts the goroutine of watch
}

// watch runs the watcher. It returns when the group has failed or has been closed.
func (w *watcher) watch() {
	var replayTicks <-chan time.Time
	var peerFailureTimer control.GraceTimer
	const ticket, operation = 0, 0 // examine sets them later
	check := workCheck{
		ticker: time.NewTicker(checkInterval),
		wait:   w.faults.newCollectiveWait(ticket, operation),
	}
	check.ticker.Stop()
	for {
		// replayTicks stays nil, and the select ignores it, until another library has captured a
		// call.
		if replayTicks == nil && w.recorder.wasCaptured.Load() {
			ticker := time.NewTicker(replayCheckInterval)
			defer ticker.Stop() // when watch returns; this happens once
			replayTicks = ticker.C
		}

		select {
		case <-w.stages.groupEnded:
			return
		case <-w.plane.Failed():
			w.teardown.begin()
			return
		case <-w.busy.Wake: // by a launch, or by the first capture of a call
			w.watchWork(check)
		case <-replayTicks:
			// Report a failed peer (another rank of the group) only after a while, because the report of
			// a kernel, which may come later, explains more.
			if w.faults.checkKernels() == nil && peerFailureTimer.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// workCheck holds objects that all calls of watchWork share, to avoid allocations.
type workCheck struct {
	ticker *time.Ticker // stopped between the calls
	wait   *collectiveWait
}

// watchWork checks the group at intervals until it has no unfinished work, fails or is closed.
func (w *watcher) watchWork(check workCheck) {
	check.ticker.Reset(checkInterval)
	defer check.ticker.Stop()
	examined := w.newExaminedCollective(check.wait)
	previousTicket, _ := w.history.lastCall()
	for checkCount := 1; ; checkCount++ {
		select {
		case <-w.stages.groupEnded:
			return
		case <-w.plane.Failed():
			return
		case <-check.ticker.C:
		}

		ticket, _ := w.history.lastCall()
		hasLaunched := ticket != previousTicket // since the previous check
		previousTicket = ticket
		isFinished := !hasLaunched && w.stopWatchingIfIdle()
		isFull := !hasLaunched || checkCount%checksPerFullCheck == 0
		if isFull {
			w.runTimer.collectUnlessBusy()
		}

		var err error
		switch {
		case isFinished:
			err = w.checkFinished()
		case isFull:
			err = w.examine(&examined)
		default:
			err = w.faults.findKernelFault()
		}

		if err != nil {
			_ = w.plane.Fail(err) // the streams report the cause
			return
		}

		if isFinished {
			return
		}
	}
}

// stopWatchingIfIdle clears the flag Watching and returns true if the group has no unfinished work.
// While the flag is cleared, launches wake the watcher.
func (w *watcher) stopWatchingIfIdle() bool {
	// Clear the flag before the check, so that a launch during the check wakes the watcher, too.
	w.busy.Watching.Store(false)
	if isIdle(w.mu, w.busy) {
		return true
	}

	w.busy.Watching.Store(true)
	return false
}

// isIdle reports whether the group has no unfinished work. It returns false while the group's lock
// mu is held, because a launch may not have queued its work yet.
func isIdle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}

	mu.Unlock()
	return busy.RemoveIdle()
}

// checkFinished is the last check after work has ended. It looks for a fault that has ended it.
func (w *watcher) checkFinished() error {
	kernelErr := w.faults.findKernelFault()
	return cmp.Or(kernelErr, w.comm.asyncError(w.cfg.Name()))
}

// examinedCollective is the collective that full checks examine until all ranks have launched it.
// The next one is the latest collective at that time. In between, others may be left out.
type examinedCollective struct {
	ticket    uint64
	operation driver.Operation
	startTime time.Time       // when the watcher began to examine it
	wait      *collectiveWait // passed to the plane; reused for all collectives

	peerFailureTimer control.GraceTimer // delays the error after a peer has failed
	// firstDifferenceTime is when a rank was first found that has announced a different call. It is
	// zero if the latest check has found no such rank.
	firstDifferenceTime time.Time
}

// newExaminedCollective returns the last collective that this rank has launched.
func (w *watcher) newExaminedCollective(wait *collectiveWait) examinedCollective {
	ticket, operation := w.history.lastCall()
	return examinedCollective{ticket: ticket, operation: operation, startTime: time.Now(), wait: wait}
}

// differenceDelay is the time between the first different call and the error. In this time, more
// ranks can announce different calls. The error lists all of them.
const differenceDelay = 100 * time.Millisecond

// delayError returns nil instead of err until differenceDelay has passed since the first error. A
// call with a nil error forgets earlier errors.
func (e *examinedCollective) delayError(err error) error {
	if err == nil {
		e.firstDifferenceTime = time.Time{}
		return nil
	}

	if e.firstDifferenceTime.IsZero() {
		e.firstDifferenceTime = time.Now()
		return nil
	}

	if time.Since(e.firstDifferenceTime) > differenceDelay {
		return err
	}

	return nil
}

// examine makes a full check and returns the failure that it has found, or nil. It replaces e by a
// later collective once all ranks have launched e.
func (w *watcher) examine(e *examinedCollective) error {
	if err := w.faults.findKernelFault(); err != nil {
		return err
	}

	isLevel := w.teardown.parent.Load() != nil // the watcher of a two-level group examines the rest
	if isLevel {
		return w.comm.asyncError(w.cfg.Name())
	}

	// A launch may be waiting until its call has been compared with those of other ranks. Until then,
	// only look for different calls.
	if call := w.comparer.hostCall.Load(); call != nil {
		lastTicket, _ := w.history.lastCall()
		return e.delayError(w.faults.findMismatch(call, lastTicket))
	}

	if err := w.messages.Examine(); err != nil {
		return err
	}

	if err := w.faults.findLaunchedMismatch(e.ticket); err != nil {
		return err
	}

	if err := w.examinePeers(e); err != nil {
		return err
	}

	if err := w.comm.asyncError(w.cfg.Name()); err != nil {
		return err
	}

	lastTicket, _ := w.history.lastCall()
	if lastTicket != e.ticket && w.isLaunchedByAll(e) {
		*e = w.newExaminedCollective(e.wait)
	}

	return nil
}

// examinePeers returns an error if a peer has failed, or if ranks have not launched e in time.
func (w *watcher) examinePeers(e *examinedCollective) error {
	e.wait.planeWait.Ticket = e.ticket
	e.wait.planeWait.Operation = e.operation
	wait := e.wait.planeWait // a copy, which the plane gets
	if e.peerFailureTimer.Expired(w.plane.PeerFailed()) {
		return w.plane.PeerFault(wait.CallText())
	}

	return w.plane.Diagnose(wait, e.startTime)
}

// isLaunchedByAll reports whether all ranks have launched e. Call it after examinePeers.
func (w *watcher) isLaunchedByAll(e *examinedCollective) bool {
	var longAgo time.Time // so that Diagnose returns a TimeoutError if a rank has not launched e
	return w.plane.Diagnose(e.wait.planeWait, longAgo) == nil
}
