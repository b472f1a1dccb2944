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

// fullCheckEvery limits full checks while the program keeps launching calls, because launches
// detect failed peers themselves. The other checks only read the kernels' reports.
const fullCheckEvery = 16

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

	running sync.WaitGroup // the goroutine that runs watch
}

// watch looks for faults, even if the program never waits for its work.
func (w *watcher) watch() {
	var check <-chan time.Time
	var grace control.GraceTimer
	work := workCheck{time.NewTicker(checkInterval), w.faults.newWait(0, 0)}
	work.ticker.Stop()
	for {
		if check == nil && w.recorder.everCaptured.Load() {
			ticker := time.NewTicker(replayCheckInterval)
			defer ticker.Stop()
			check = ticker.C
		}
		select {
		case <-w.stages.groupEnded:
			return
		case <-w.plane.Failed():
			w.teardown.begin()
			return
		case <-w.busy.Wake:
			w.watchWork(work)
		case <-check:
			// This rank's kernels may report a more specific fault than the failure of a peer.
			if w.faults.checkKernels() == nil && grace.Expired(w.plane.PeerFailed()) {
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
	probe := w.newProbe(check.wait)
	seen, _ := w.history.last()
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
		latest, _ := w.history.last()
		launching := latest != seen
		seen = latest
		finished := !launching && w.canSleep()
		var err error
		switch {
		case finished: // read the reports of finished work
			err = cmp.Or(w.faults.kernelFault(), w.comm.asyncError(w.cfg.Name()))
		case launching && checks%fullCheckEvery != 0:
			err = w.faults.kernelFault()
		default:
			err = w.examine(&probe)
		}
		if err != nil {
			_ = w.plane.Fail(err)
			return
		}
		if finished {
			return
		}
	}
}

// canSleep reports whether all work is finished. It clears Watching before it checks the work, so
// that a concurrent launch wakes the watcher.
func (w *watcher) canSleep() bool {
	w.busy.Watching.Store(false)
	if idle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// probe identifies the collective that the watcher examines until every rank has launched it.
type probe struct {
	grace     control.GraceTimer
	ticket    uint64
	operation driver.Operation
	since     time.Time
	wait      *collectiveWait
	// differsSince is the time when the call being compared was first found to differ, or zero.
	differsSince time.Time
}

// differGrace lets a comparison find all ranks whose calls differ.
const differGrace = 100 * time.Millisecond

// afterGrace returns the error of a comparison once it has persisted for differGrace.
func (p *probe) afterGrace(err error) error {
	switch {
	case err == nil:
		p.differsSince = time.Time{}
	case p.differsSince.IsZero():
		p.differsSince = time.Now()
	case time.Since(p.differsSince) > differGrace:
		return err
	}
	return nil
}

func (w *watcher) newProbe(wait *collectiveWait) probe {
	ticket, operation := w.history.last()
	return probe{ticket: ticket, operation: operation, since: time.Now(), wait: wait}
}

func (w *watcher) examine(p *probe) error {
	if err := w.faults.kernelFault(); err != nil {
		return err
	}
	if w.teardown.parent.Load() != nil { // the watcher of the two-level group examines the peers
		return w.comm.asyncError(w.cfg.Name())
	}
	if call := w.comparer.call.Load(); call != nil {
		latest, _ := w.history.last()
		return p.afterGrace(w.faults.mismatch(call, latest))
	}
	if err := w.messages.Examine(); err != nil {
		return err
	}
	if err := w.faults.launchedMismatch(p.ticket); err != nil {
		return err
	}
	p.wait.wait.Ticket, p.wait.wait.Operation = p.ticket, p.operation
	wait := p.wait.wait
	if p.grace.Expired(w.plane.PeerFailed()) {
		return w.plane.PeerFault(wait.CallText())
	}
	if err := w.plane.Diagnose(wait, p.since); err != nil {
		return err
	}
	if err := w.comm.asyncError(w.cfg.Name()); err != nil {
		return err
	}
	latest, _ := w.history.last()
	if latest != p.ticket && w.plane.Diagnose(wait, time.Time{}) == nil {
		*p = w.newProbe(p.wait)
	}
	return nil
}

// idle reports whether a group has no call in progress and no unfinished work on any stream.
func idle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}
	mu.Unlock()
	return busy.AllIdle()
}
