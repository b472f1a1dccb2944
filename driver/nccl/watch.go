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

// fullCheckEvery is the number of checks per full examination, for a group that keeps launching.
// Between full examinations, each launch notices a failed peer, and each check reads the reports of
// kernels.
const fullCheckEvery = 16

// replayCheckInterval is the time between two checks of a group whose calls another library may
// replay, while symmem has launched no work.
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

	running sync.WaitGroup // counts the goroutine that runs watch
}

// watch looks for faults until the group ends. It is needed because the program may never wait for
// its work, or may wait in CUDA, without a deadline.
func (w *watcher) watch() {
	var check <-chan time.Time
	var grace control.GraceTimer
	for {
		if check == nil && w.recorder.replayed.Load() {
			ticker := time.NewTicker(replayCheckInterval)
			defer ticker.Stop()
			check = ticker.C
		}
		select {
		case <-w.stages.ended:
			return
		case <-w.plane.Failed():
			w.teardown.begin()
			return
		case <-w.busy.Wake:
			w.watchWork()
		case <-check:
			// Give this rank's kernels time to report a fault, which may be more specific than the failure
			// of a peer.
			if w.faults.checkKernels() == nil && grace.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// watchWork checks for faults periodically, until no work is unfinished or the plane has failed.
func (w *watcher) watchWork() {
	check := time.NewTicker(checkInterval)
	defer check.Stop()
	probe := w.newProbe()
	seen, _ := w.history.last()
	for checks := 1; ; checks++ {
		select {
		case <-w.stages.ended:
			return
		case <-w.plane.Failed():
			return
		case <-check.C:
		}
		// Full checks take locks that launches need, so they are less frequent while the program keeps
		// launching.
		latest, _ := w.history.last()
		launching := latest != seen
		seen = latest
		finished := !launching && w.mayStop()
		var err error
		switch {
		case finished: // check the reports of the finished work
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

// mayStop reports whether the watcher may sleep, because no work is unfinished. It clears Watching
// before it checks, so that a concurrent launch wakes the watcher.
func (w *watcher) mayStop() bool {
	w.busy.Watching.Store(false)
	if idle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// probe identifies the collective that the watcher examines: the one that was the latest when the
// probe was created. Once every rank has launched that collective, the watcher creates a new probe.
type probe struct {
	grace     control.GraceTimer
	ticket    uint64
	operation driver.Operation
	since     time.Time
	// differsSince is the time at which the call being compared was first found to differ; zero if it
	// has not been.
	differsSince time.Time
}

// differGrace limits the time in which a comparison may find all ranks that differ. After that, the
// group fails with an error that names the ranks found so far.
const differGrace = 100 * time.Millisecond

// afterGrace returns the error of a comparison once it has persisted for differGrace, and nil
// before.
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

func (w *watcher) newProbe() probe {
	ticket, operation := w.history.last()
	return probe{ticket: ticket, operation: operation, since: time.Now()}
}

// examine returns an error if the probe's collective can never complete.
func (w *watcher) examine(p *probe) error {
	if err := w.faults.kernelFault(); err != nil {
		return err
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
	wait := w.faults.waitFor(p.ticket, p.operation)
	if p.grace.Expired(w.plane.PeerFailed()) {
		return w.plane.PeerFault(wait.Doing())
	}
	if err := w.plane.Diagnose(wait, p.since); err != nil {
		return err
	}
	if err := w.comm.asyncError(w.cfg.Name()); err != nil {
		return err
	}
	if latest, _ := w.history.last(); latest != p.ticket && w.faults.complete(p.ticket) {
		*p = w.newProbe()
	}
	return nil
}

// idle reports whether no stream has unfinished work of a group and no call of the group is in
// progress.
func idle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}
	mu.Unlock()
	return busy.AllIdle()
}
