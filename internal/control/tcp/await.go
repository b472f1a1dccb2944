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
	// spinBudget is the time for which Await polls without pausing, so that it returns from small
	// collectives without delay. It then yields until yieldTime, and sleeps after that.
	spinBudget = 50 * time.Microsecond
	yieldTime  = 500 * time.Microsecond
	// pollSleep bounds how late Await detects the end of a longer wait.
	pollSleep = 100 * time.Microsecond
)

// Await waits until the work of w has ended.
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

// statusDelay bounds the delay with which others learn of a submission.
const statusDelay = 2 * statusInterval

// Diagnose returns the reason why work may never end, or nil, without waiting.
func (p *Plane) Diagnose(w control.Wait, since time.Time) error {
	err := p.checkWait(p.waitFor(w, since))
	if err != nil && !errors.Is(err, driver.ErrClosed) && w.Ended() {
		return nil
	}
	return w.Refine(err)
}

// PeerFault returns a PeerError that names the peers that have failed or are lost.
func (p *Plane) PeerFault(doing string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.PeerFailure(p.cfg.Group, p.rankStates(&waiting{}), doing)
}
