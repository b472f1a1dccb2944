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

// checkInterval is how often the watcher looks while work is under way.
const checkInterval = 2 * time.Millisecond

// fullCheckEvery is the number of checks per full examination of a group that keeps launching. Each
// of its launches notices a peer that has failed, and each check looks for reports of kernels.
const fullCheckEvery = 16

// replayCheckInterval is how often the watcher of a group that another library replays looks while
// nothing is launched here.
const replayCheckInterval = 20 * time.Millisecond

// watcher looks for faults while a group has work under way.
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

	running sync.WaitGroup // the goroutine of watch
}

// watch looks for faults until the group ends. The program may not wait for its work at all, or
// wait in CUDA, which knows no deadline.
func (w *watcher) watch() {
	var look <-chan time.Time
	var grace control.GraceTimer
	for {
		if look == nil && w.recorder.replayed.Load() {
			ticker := time.NewTicker(replayCheckInterval)
			defer ticker.Stop()
			look = ticker.C
		}
		select {
		case <-w.stages.ended:
			return
		case <-w.plane.Failed():
			w.teardown.begin()
			return
		case <-w.busy.Wake:
			w.watchWork()
		case <-look:
			// Kernels of this rank get time to report their findings, which may say more than that
			// a peer has failed.
			if w.faults.checkKernels() == nil && grace.Expired(w.plane.PeerFailed()) {
				w.faults.checkPeers()
			}
		}
	}
}

// watchWork looks again and again until nothing is under way or the plane has failed.
func (w *watcher) watchWork() {
	look := time.NewTicker(checkInterval)
	defer look.Stop()
	probe := w.newProbe()
	seen, _ := w.history.last()
	for checks := 1; ; checks++ {
		select {
		case <-w.stages.ended:
			return
		case <-w.plane.Failed():
			return
		case <-look.C:
		}
		// A program that keeps launching is left alone, since asking takes its locks.
		now, _ := w.history.last()
		launching := now != seen
		seen = now
		resting := !launching && w.mayStop()
		var err error
		switch {
		case resting: // a last look at the reports of its work
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
		if resting {
			return
		}
	}
}

// mayStop reports whether the watcher may sleep. A launch that comes meanwhile wakes it again,
// since it is not awake.
func (w *watcher) mayStop() bool {
	w.busy.Watching.Store(false)
	if idle(w.mu, w.busy) {
		return true
	}
	w.busy.Watching.Store(true)
	return false
}

// probe is the collective that the watcher examines: the last one launched when it looked. Once
// every rank has launched it, the watcher takes the next one.
type probe struct {
	grace     control.GraceTimer
	ticket    uint64
	operation driver.Operation
	since     time.Time
	// differsSince is the time at which a call that is being compared was found to differ from
	// others; else zero.
	differsSince time.Time
}

// differGrace is how long a comparison gets to find all ranks that differ, before it ends over
// those that are known.
const differGrace = 100 * time.Millisecond

// afterGrace returns the error of a comparison once it has had its grace.
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

// examine asks why the probe may never end.
func (w *watcher) examine(p *probe) error {
	if err := w.faults.kernelFault(); err != nil {
		return err
	}
	if call := w.comparer.call.Load(); call != nil {
		latest, _ := w.history.last()
		return p.afterGrace(w.faults.differing(call, latest))
	}
	if err := w.messages.Examine(); err != nil {
		return err
	}
	if err := w.faults.launchedOtherwise(p.ticket); err != nil {
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

// idle reports whether no stream of a group has work and no call is being made.
func idle(mu *groupLock, busy *stream.BusyStreams) bool {
	if !mu.TryLock() {
		return false
	}
	mu.Unlock()
	return busy.AllIdle()
}
