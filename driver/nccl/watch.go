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

// checksPerFullCheck makes full checks rarer while the program launches calls, because launches
// also detect failed peers. The other checks only read the reports of kernels.
const checksPerFullCheck = 16

// replayCheckInterval applies while only another library can launch calls, by replaying graphs.
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

// watch returns when the group has failed or has been closed.
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
			// Report a failed peer only after a while, because a kernel's report may explain more.
			if w.faults.checkKernels() == nil && peerFailureTimer.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// workCheck is shared by all calls of watchWork to avoid allocations.
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

// stopWatchingIfIdle clears Watching before it checks for work, so that a concurrent launch wakes
// the watcher.
func (w *watcher) stopWatchingIfIdle() bool {
	w.busy.Watching.Store(false)
	if isIdle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// examinedCollective is a collective that some rank may not have launched yet.
type examinedCollective struct {
	peerFailureTimer control.GraceTimer
	ticket           uint64
	operation        driver.Operation
	startTime        time.Time
	wait             *collectiveWait
	// firstDifferenceTime is when a rank with a different call was first found, or zero.
	firstDifferenceTime time.Time
}

// differenceDelay gives more ranks the time to announce different calls before an error.
const differenceDelay = 100 * time.Millisecond

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
	if w.teardown.parent.Load() != nil { // the two-level group's watcher examines the peers
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

func isIdle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}
	mu.Unlock()
	return busy.AllIdle()
}
