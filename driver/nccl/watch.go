package nccl

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/nccl"
)

// checkInterval is how often the watcher looks while work is under way.
const checkInterval = 2 * time.Millisecond

// fullCheckEvery is every how many checks a group that goes on launching is examined in full. Each
// of its launches finds by itself that a peer has failed, and reports of kernels are looked for at
// each check.
const fullCheckEvery = 16

// replayCheckInterval is how often the watcher of a group that another library replays looks while
// nothing is launched here.
const replayCheckInterval = 20 * time.Millisecond

// watcher looks after the work of a communicator.
type watcher struct{ *communicator }

// watch looks after work that is under way until the communicator ends: nobody may be waiting for
// it, and whoever is may be waiting in CUDA.
func (c watcher) watch() {
	var look <-chan time.Time
	var grace control.GraceTimer
	for {
		if look == nil && c.replayed.Load() {
			ticker := time.NewTicker(replayCheckInterval)
			defer ticker.Stop()
			look = ticker.C
		}
		select {
		case <-c.ended:
			return
		case <-c.plane.Failed():
			c.end()
			return
		case <-c.busy.Wake:
			c.watchWork()
		case <-look:
			// Kernels here get time to report what they find out, which may be more than that a
			// peer has failed.
			if c.checkKernels() == nil && grace.Expired(c.plane.PeerFailed()) {
				c.CheckPeers()
			}
		}
	}
}

// watchWork looks again and again until nothing is under way or the plane has failed.
func (c watcher) watchWork() {
	look := time.NewTicker(checkInterval)
	defer look.Stop()
	probe := c.newProbe()
	seen, _ := c.history.last()
	for checks := 1; ; checks++ {
		select {
		case <-c.ended:
			return
		case <-c.plane.Failed():
			return
		case <-look.C:
		}
		// A program that goes on launching is left alone, since asking takes its locks.
		now, _ := c.history.last()
		goesOn := now != seen
		seen = now
		resting := !goesOn && c.mayStop()
		var err error
		switch {
		case resting: // a last look at what the work has left
			err = cmp.Or(c.kernelFault(), c.asyncError())
		case goesOn && checks%fullCheckEvery != 0:
			err = c.kernelFault()
		default:
			err = c.examine(&probe)
		}
		if err != nil {
			_ = c.plane.Fail(err)
			return
		}
		if resting {
			return
		}
	}
}

// mayStop reports whether the watcher may sleep. A launch that comes meanwhile wakes it again,
// since it is not awake.
func (c watcher) mayStop() bool {
	c.busy.Watching.Store(false)
	if c.idle() {
		return true
	}
	c.busy.Watching.Store(true)
	return false
}

// probe is a collective that was the last one launched when the watcher looked, and since when.
// Once every rank has launched it the next one is looked at.
type probe struct {
	grace     control.GraceTimer
	ticket    uint64
	operation driver.Operation
	since     time.Time
	// differsSince is since when a call that is being compared is known to differ from others; else
	// zero.
	differsSince time.Time
}

// differGrace is how long a comparison gets to find all ranks that differ, before it ends over
// those that are known.
const differGrace = 100 * time.Millisecond

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

func (c watcher) newProbe() probe {
	ticket, operation := c.history.last()
	return probe{ticket: ticket, operation: operation, since: time.Now()}
}

// examine asks why the probe may never end.
func (c watcher) examine(p *probe) error {
	if err := c.kernelFault(); err != nil {
		return err
	}
	if call := c.comparing.Load(); call != nil {
		latest, _ := c.history.last()
		return p.afterGrace(c.differing(call, latest))
	}
	if err := c.messages.Examine(); err != nil {
		return err
	}
	if err := c.launchedOtherwise(p.ticket); err != nil {
		return err
	}
	w := c.waitFor(p.ticket, p.operation)
	if p.grace.Expired(c.plane.PeerFailed()) {
		return c.plane.PeerFault(w.Doing())
	}
	if err := c.plane.Diagnose(w, p.since); err != nil {
		return err
	}
	if err := c.asyncError(); err != nil {
		return err
	}
	if latest, _ := c.history.last(); latest != p.ticket && c.complete(p.ticket) {
		*p = c.newProbe()
	}
	return nil
}

// asyncError asks NCCL whether something went wrong behind its calls.
func (c watcher) asyncError() error {
	err := c.device.nccl.AsyncError(c.handle)
	if err == nil || errors.Is(err, nccl.ErrInProgress) {
		return nil
	}
	return fmt.Errorf("group %s: %w", c.cfg.Name(), err)
}
