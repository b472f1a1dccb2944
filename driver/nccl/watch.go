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

const checkInterval = 2 * time.Millisecond

// checksPerFullCheck limits full checks while the program launches calls, because launches detect
// failed peers themselves. The other checks only read the reports of kernels.
const checksPerFullCheck = 16

// replayCheckInterval is the time between checks while only another library can replay calls.
const replayCheckInterval = 20 * time.Millisecond

type watcher struct {
	cfg      *driver.GroupConfig
	plane    control.Plane
	mu       *groupLock
	busy     *stream.BusyStreams
	history  *history
	comm     *ncclComm
	messages *p2p.Messages
	faults   *faults
	comparer *comparer
	recorder *recorder
	stages   *stages
	teardown *teardown
	runTimer *runTimer

	goroutine sync.WaitGroup
}

// watch runs until the group has failed or has been closed.
func (w *watcher) watch() {
	var replayTicks <-chan time.Time
	var peerFailureTimer control.GraceTimer
	check := workCheck{time.NewTicker(checkInterval), w.faults.newCollectiveWait(0, 0)}
	check.ticker.Stop()
	for {
		if replayTicks == nil && w.recorder.wasCaptured.Load() {
			ticker := time.NewTicker(replayCheckInterval)
			defer ticker.Stop()
			replayTicks = ticker.C
		}
		select {
		case <-w.stages.groupEnded:
			return
		case <-w.plane.Failed():
			w.teardown.begin()
			return
		case <-w.busy.Wake:
			w.watchWork(check)
		case <-replayTicks:
			// Wait before reporting a failed peer, because kernels might report a specific fault.
			if w.faults.checkKernels() == nil && peerFailureTimer.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// workCheck holds objects that all calls of watchWork use, to avoid allocations.
type workCheck struct {
	ticker *time.Ticker // stopped between the calls
	wait   *collectiveWait
}

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
		hasLaunched := ticket != previousTicket
		previousTicket = ticket
		isFinished := !hasLaunched && w.stopWatchingIfIdle()
		if !hasLaunched || checkCount%checksPerFullCheck == 0 {
			w.runTimer.collectUnlessBusy(w.mu)
		}
		var err error
		switch {
		case isFinished:
			err = cmp.Or(w.faults.findKernelFault(), w.comm.asyncError(w.cfg.Name()))
		case hasLaunched && checkCount%checksPerFullCheck != 0:
			err = w.faults.findKernelFault()
		default:
			err = w.examine(&examined)
		}
		if err != nil {
			_ = w.plane.Fail(err)
			return
		}
		if isFinished {
			return
		}
	}
}

// stopWatchingIfIdle reports whether all work is finished. It clears Watching before it checks the
// work, so that a concurrent launch wakes the watcher.
func (w *watcher) stopWatchingIfIdle() bool {
	w.busy.Watching.Store(false)
	if isIdle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// examinedCollective is examined until every rank has launched it.
type examinedCollective struct {
	peerFailureTimer control.GraceTimer
	ticket           uint64
	operation        driver.Operation
	startTime        time.Time
	wait             *collectiveWait
	// firstDifferenceTime is the time when a differing call was first found, or zero.
	firstDifferenceTime time.Time
}

// differenceDelay is the time that examine waits for more ranks with different calls.
const differenceDelay = 100 * time.Millisecond

// delayError returns err once comparisons have failed for differenceDelay.
func (e *examinedCollective) delayError(err error) error {
	switch {
	case err == nil:
		e.firstDifferenceTime = time.Time{}
	case e.firstDifferenceTime.IsZero():
		e.firstDifferenceTime = time.Now()
	case time.Since(e.firstDifferenceTime) > differenceDelay:
		return err
	}
	return nil
}

func (w *watcher) newExaminedCollective(wait *collectiveWait) examinedCollective {
	ticket, operation := w.history.lastCall()
	return examinedCollective{ticket: ticket, operation: operation, startTime: time.Now(), wait: wait}
}

func (w *watcher) examine(e *examinedCollective) error {
	if err := w.faults.findKernelFault(); err != nil {
		return err
	}
	if w.teardown.parent.Load() != nil { // the watcher of the two-level group examines the peers
		return w.comm.asyncError(w.cfg.Name())
	}
	if call := w.comparer.comparedCall.Load(); call != nil {
		lastTicket, _ := w.history.lastCall()
		return e.delayError(w.faults.findMismatch(call, lastTicket))
	}
	if err := w.messages.Examine(); err != nil {
		return err
	}
	if err := w.faults.findLaunchedMismatch(e.ticket); err != nil {
		return err
	}
	e.wait.wait.Ticket, e.wait.wait.Operation = e.ticket, e.operation
	wait := e.wait.wait
	if e.peerFailureTimer.Expired(w.plane.PeerFailed()) {
		return w.plane.PeerFault(wait.CallText())
	}
	if err := w.plane.Diagnose(wait, e.startTime); err != nil {
		return err
	}
	if err := w.comm.asyncError(w.cfg.Name()); err != nil {
		return err
	}
	lastTicket, _ := w.history.lastCall()
	if lastTicket != e.ticket && w.plane.Diagnose(wait, time.Time{}) == nil {
		*e = w.newExaminedCollective(e.wait)
	}
	return nil
}

// isIdle reports whether a group has no call in progress and no unfinished work on any stream.
func isIdle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}
	mu.Unlock()
	return busy.AllIdle()
}
