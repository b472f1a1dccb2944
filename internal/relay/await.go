package relay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

const (
	// keen is how long Await polls without a pause: the time of a small collective, so that the
	// end of one is seen at once. Until patient it lets others run, then it naps.
	keen    = 50 * time.Microsecond
	patient = 500 * time.Microsecond
	// nap is what the end of a longer wait may be late by.
	nap = 100 * time.Microsecond
)

// Await waits until the work has ended.
func (p *Plane) Await(ctx context.Context, w control.Wait) error {
	begin := time.Now()
	for waited := time.Duration(0); waited < keen; waited = time.Since(begin) {
		if w.Done() {
			return nil
		}
	}
	wait := waitFor(w, begin)
	if err := p.enter(wait); err != nil {
		return err
	}
	defer p.exit(wait)
	var mourning control.Mourning
	for !w.Done() {
		err := p.judge(wait)
		if err == nil && mourning.Over(w.Ticket != 0 && p.Forsaken()) {
			err = fmt.Errorf("%s: %w", w.Doing(), driver.ErrFault)
		}
		if err != nil && !w.Done() {
			return p.Fail(err)
		}
		if ctx.Err() != nil && !w.Done() {
			return fmt.Errorf("%s: %w", w.Doing(), context.Cause(ctx))
		}
		if time.Since(begin) < patient {
			runtime.Gosched()
			continue
		}
		time.Sleep(nap)
	}
	return nil
}

func waitFor(w control.Wait, begin time.Time) *waiting {
	return &waiting{
		doing: w.Doing, collective: w.Ticket, operation: w.Operation, begin: begin,
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
	err := p.judge(waitFor(w, since))
	if err != nil && !errors.Is(err, driver.ErrClosed) && w.Ended() {
		return nil
	}
	return err
}

// judge is verdict where p.mu is not held: nothing of the caller's is called under it.
func (p *Plane) judge(w *waiting) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verdict(w, time.Now())
}

// verdict tells why the work may never end, or nil. Lost ranks count even if they had submitted
// all that is waited for: their part of the work may be lost with them. p.mu is held.
func (p *Plane) verdict(w *waiting, now time.Time) error {
	if p.cause != nil || w.collective == 0 {
		return p.cause
	}
	missing := p.missing(w)
	if lost := p.lost(p.all); len(lost) > 0 {
		return &driver.RankLostError{Ranks: p.world(lost), Doing: w.doing()}
	}
	if len(missing) > 0 && p.peerFailed() {
		return fmt.Errorf("%s: %w", w.doing(), driver.ErrFault)
	}
	if err := p.hopeless(w, missing); err != nil {
		return err
	}
	// What a rank has submitted in time may be told a little later.
	due := now.Sub(w.begin) >= p.cfg.Timeout+2*tellInterval
	if len(missing) > 0 && due && !p.rhythm.deaf(now) {
		return p.timeout(w, missing, now)
	}
	return nil
}
