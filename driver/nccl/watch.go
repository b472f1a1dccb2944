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

// checkInterval is the time between two checks of the watcher while work is unfinished.
const checkInterval = 2 * time.Millisecond

// fullCheckEvery limits full checks while the program keeps launching calls: only one in
// fullCheckEvery checks is full. The other checks only read the kernels' reports, because the
// launches themselves detect failed peers.
const fullCheckEvery = 16

// replayCheckInterval is the time between two checks when all work that symmem has launched is
// finished, but another library may replay calls.
const replayCheckInterval = 20 * time.Millisecond

// watcher looks for faults while a group has unfinished work.
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

	running sync.WaitGroup // used to wait for the goroutine that runs watch
}

// watch looks for faults until the group has failed or is closed. It finds faults even if the
// program never waits for its work, or waits in CUDA without a deadline.
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
			// Give this rank's kernels some time to report a fault, because their report may be
			// more specific than the failure of a peer.
			if w.faults.checkKernels() == nil && grace.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// workCheck holds a ticker and a wait that all calls of watchWork reuse, to avoid allocations.
type workCheck struct {
	ticker *time.Ticker // stopped between the calls
	wait   *collectiveWait
}

// watchWork checks for faults periodically, until no work is unfinished or the plane has failed.
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
		// Full checks are less frequent while the program keeps launching, because they take locks
		// that launches need.
		latest, _ := w.history.last()
		launching := latest != seen
		seen = latest
		finished := !launching && w.canSleep()
		var err error
		switch {
		case finished: // read the reports of the finished work
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

// canSleep reports whether all work is finished, so that the watcher may sleep. It clears Watching
// before it checks the work, so that a concurrent launch wakes the watcher.
func (w *watcher) canSleep() bool {
	w.busy.Watching.Store(false)
	if idle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// probe identifies the collective that the watcher examines, which was the latest when the probe
// was created. Once every rank has launched that collective, the watcher creates another probe.
type probe struct {
	grace     control.GraceTimer
	ticket    uint64
	operation driver.Operation
	since     time.Time
	// wait describes a wait for the collective. All probes of a watcher reuse it.
	wait *collectiveWait
	// differsSince is the time when the call being compared was first found to differ. It is zero
	// if the call does not differ.
	differsSince time.Time
}

// differGrace is how long the watcher waits for a comparison to find all ranks whose calls
// differ. After that, the group fails with the ranks found so far.
const differGrace = 100 * time.Millisecond

// afterGrace returns the error of a comparison once the error has persisted for differGrace.
// Before that, it returns nil.
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

// examine returns an error if the probe's collective can never complete.
func (w *watcher) examine(p *probe) error {
	if err := w.faults.kernelFault(); err != nil {
		return err
	}
	if w.teardown.parent.Load() != nil { // the watcher of the whole group examines the peers
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
