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
	// the end of one is seen at once. Until patient it lets others run, then it naps.
	spinBudget = 50 * time.Microsecond
	patient    = 500 * time.Microsecond
	// nap is what the end of a longer wait may be late by.
	nap = 100 * time.Microsecond
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
	if err := p.enter(wait); err != nil {
		return err
	}
	defer p.exit(wait)
	var grace control.GraceTimer
	for !w.Done() {
		wait.failedFor = grace.For(w.Ticket != 0 && p.PeerFailed())
		if err := p.judge(wait); err != nil && !w.Done() {
			return p.Fail(w.Blame(err))
		}
		if ctx.Err() != nil && !w.Done() {
			return p.interrupted(ctx, wait)
		}
		if time.Since(begin) < patient {
			runtime.Gosched()
			continue
		}
		time.Sleep(nap)
	}
	return nil
}

// interrupted is the error of a wait whose context has ended.
func (p *Plane) interrupted(ctx context.Context, w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.question(w, time.Now())
	return control.Interrupted(&q, p.survey(w), context.Cause(ctx))
}

// untold is how much later than it was done others may know what a rank has submitted.
const untold = 2 * tellInterval

// waitFor is a wait for work. What a rank has submitted in time may be told a little later.
func (p *Plane) waitFor(w control.Wait, begin time.Time) *waiting {
	return &waiting{
		doing: w.Doing, collective: w.Ticket, operation: w.Operation, begin: begin,
		timeout: p.cfg.Timeout + untold, work: true, failedFor: -1,
	}
}

func (p *Plane) enter(w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.open(driver.LaneControl)
	}
	p.show(w)
	return nil
}

func (p *Plane) exit(w *waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conceal(w)
}

// Trouble tells without waiting why work may never end.
func (p *Plane) Trouble(w control.Wait, since time.Time) error {
	err := p.judge(p.waitFor(w, since))
	if err != nil && !errors.Is(err, driver.ErrClosed) && w.Ended() {
		return nil
	}
	return w.Blame(err)
}

// judge is verdict where p.mu is not held.
func (p *Plane) judge(w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdict(w, time.Now())
}

// verdict says why the work may never end, or nil, and warns of ranks that are late. p.mu is held,
// and given up for a warning.
func (p *Plane) verdict(w *waiting, now time.Time) error {
	q := p.question(w, now)
	v := control.Judge(&q, p.survey(w))
	if v.Warning != nil {
		p.warn(v.Warning)
	}
	return v.Err
}

// PeerFault names the peers that have failed, or are lost.
func (p *Plane) PeerFault(doing string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.PeerFailure(p.cfg.Group, p.survey(&waiting{}), doing)
}
