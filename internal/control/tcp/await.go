package tcp

import (
	"context"
	"errors"
	"runtime"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// spinBudget is how long Await polls without a pause: the time of a small collective, so that
	// the end of one is seen at once. Until yieldTime it yields, then it sleeps.
	spinBudget = 50 * time.Microsecond
	yieldTime  = 500 * time.Microsecond
	// pollSleep is what the end of a longer wait may be late by.
	pollSleep = 100 * time.Microsecond
)

// Await waits until the work has ended.
func (p *Plane) Await(ctx context.Context, w control.Wait) error {
	begin := time.Now()
	for waited := time.Duration(0); waited < spinBudget; waited = time.Since(begin) {
		if w.Done() {
			return nil
		}
	}
	wait := p.waitFor(w, begin)
	if err := p.beginWait(wait); err != nil {
		return err
	}
	defer p.endWait(wait)
	var grace control.GraceTimer
	for !w.Done() {
		wait.failedFor = grace.Elapsed(w.Ticket != 0 && p.PeerFailed())
		if err := p.checkWait(wait); err != nil && !w.Done() {
			return p.Fail(w.Refine(err))
		}
		if ctx.Err() != nil && !w.Done() {
			return p.interrupted(ctx, wait)
		}
		if time.Since(begin) < yieldTime {
			runtime.Gosched()
			continue
		}
		time.Sleep(pollSleep)
	}
	return nil
}

// interrupted is the error of a wait whose context has ended.
func (p *Plane) interrupted(ctx context.Context, w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.waitStatus(w, time.Now())
	return control.Interrupted(&q, p.rankStates(w), context.Cause(ctx))
}

// statusDelay is how late others may know what a rank has submitted.
const statusDelay = 2 * statusInterval

// waitFor is a wait for work. What a rank has submitted in time may be known here a little later.
func (p *Plane) waitFor(w control.Wait, begin time.Time) *waiting {
	return &waiting{
		doing: w.Doing, collective: w.Ticket, operation: w.Operation, begin: begin,
		timeout: p.cfg.Timeout + statusDelay, work: true, failedFor: -1,
	}
}

func (p *Plane) beginWait(w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.usable(driver.LaneControl)
	}
	p.publish(w)
	return nil
}

func (p *Plane) endWait(w *waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unpublish(w)
}

// Diagnose returns at once why work may never end, or nil.
func (p *Plane) Diagnose(w control.Wait, since time.Time) error {
	err := p.checkWait(p.waitFor(w, since))
	if err != nil && !errors.Is(err, driver.ErrClosed) && w.Ended() {
		return nil
	}
	return w.Refine(err)
}

// checkWait is verdict where p.mu is not held.
func (p *Plane) checkWait(w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdict(w, time.Now())
}

// verdict says why the work may never end, or nil, and warns of ranks that are late. p.mu is held,
// and given up for a warning.
func (p *Plane) verdict(w *waiting, now time.Time) error {
	q := p.waitStatus(w, now)
	v := control.Judge(&q, p.rankStates(w))
	if v.Warning != nil {
		p.warn(v.Warning)
	}
	return v.Err
}

// PeerFault names the peers that have failed, or are lost.
func (p *Plane) PeerFault(doing string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.PeerFailure(p.cfg.Group, p.rankStates(&waiting{}), doing)
}
