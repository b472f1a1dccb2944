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

// checksPerFullCheck limits full checks while the program keeps launching calls, because launches
// detect failed peers themselves. The other checks only read the kernels' reports.
const checksPerFullCheck = 16

// replayCheckInterval is the time between checks if only another library may replay calls.
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

	goroutine sync.WaitGroup // the goroutine that runs watch
}

// watch looks for faults, even if the program never waits for its work.
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
			// This rank's kernels may report a more specific fault than the failure of a peer.
			if w.faults.checkKernels() == nil && peerFailureTimer.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// workCheck is reused by all calls of watchWork, to avoid allocations.
type workCheck struct {
	ticker *time.Ticker // stopped between the calls
	wait   *collectiveWait
}

func (w *watcher) watchWork(check workCheck) {
	check.ticker.Reset(checkInterval)
	defer check.ticker.Stop()
	examined := w.newExaminedCollective(check.wait)
	previousTicket, _ := w.history.lastCall()
	for checks := 1; ; checks++ {
		select {
		case <-w.stages.groupEnded:
			return
		case <-w.plane.Failed():
			return
		case <-check.ticker.C:
		}
		// Full checks take locks that launches need, so few checks are full while the program
		// launches calls.
		ticket, _ := w.history.lastCall()
		hasLaunched := ticket != previousTicket
		previousTicket = ticket
		isFinished := !hasLaunched && w.stopWatchingIfIdle()
		var err error
		switch {
		case isFinished: // read the reports of finished work
			err = cmp.Or(w.faults.findKernelFault(), w.comm.asyncError(w.cfg.Name()))
		case hasLaunched && checks%checksPerFullCheck != 0:
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

// canSleep reports whether all work is finished. It clears Watching before it checks the work, so
// that a concurrent launch wakes the watcher.
func (w *watcher) stopWatchingIfIdle() bool {
	w.busy.Watching.Store(false)
	if isIdle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// probe identifies the collective that the watcher examines until every rank has launched it.
type examinedCollective struct {
	peerFailureTimer control.GraceTimer
	ticket           uint64
	operation        driver.Operation
	startTime        time.Time
	wait             *collectiveWait
	// firstDifferenceTime is the time when the call being compared was first found to differ, or
	// zero.
	firstDifferenceTime time.Time
}

// differenceDelay lets a comparison find all ranks whose calls differ.
const differenceDelay = 100 * time.Millisecond

// afterDelay returns the error of a comparison once it has persisted for differenceDelay.
func (p *examinedCollective) afterDelay(err error) error {
	switch {
	case err == nil:
		p.firstDifferenceTime = time.Time{}
	case p.firstDifferenceTime.IsZero():
		p.firstDifferenceTime = time.Now()
	case time.Since(p.firstDifferenceTime) > differenceDelay:
		return err
	}
	return nil
}

func (w *watcher) newExaminedCollective(wait *collectiveWait) examinedCollective {
	ticket, operation := w.history.lastCall()
	return examinedCollective{ticket: ticket, operation: operation, startTime: time.Now(), wait: wait}
}

func (w *watcher) examine(p *examinedCollective) error {
	if err := w.faults.findKernelFault(); err != nil {
		return err
	}
	if w.teardown.parent.Load() != nil { // the watcher of the two-level group examines the peers
		return w.comm.asyncError(w.cfg.Name())
	}
	if call := w.comparer.comparedCall.Load(); call != nil {
		latest, _ := w.history.lastCall()
		return p.afterDelay(w.faults.findMismatch(call, latest))
	}
	if err := w.messages.Examine(); err != nil {
		return err
	}
	if err := w.faults.findLaunchedMismatch(p.ticket); err != nil {
		return err
	}
	p.wait.wait.Ticket, p.wait.wait.Operation = p.ticket, p.operation
	wait := p.wait.wait
	if p.peerFailureTimer.Expired(w.plane.PeerFailed()) {
		return w.plane.PeerFault(wait.CallText())
	}
	if err := w.plane.Diagnose(wait, p.startTime); err != nil {
		return err
	}
	if err := w.comm.asyncError(w.cfg.Name()); err != nil {
		return err
	}
	latest, _ := w.history.lastCall()
	if latest != p.ticket && w.plane.Diagnose(wait, time.Time{}) == nil {
		*p = w.newExaminedCollective(p.wait)
	}
	return nil
}

// idle reports whether a group has no call in progress and no unfinished work on any stream.
func isIdle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}
	mu.Unlock()
	return busy.AllIdle()
}
