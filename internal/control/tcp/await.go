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
	// Await polls for spinBudget, yields between polls until yieldTime, and then sleeps for
	// pollSleep between polls.
	spinBudget = 50 * time.Microsecond
	yieldTime  = 500 * time.Microsecond
	pollSleep  = 100 * time.Microsecond
)

// Await implements control.Plane.
func (p *Plane) Await(ctx context.Context, w control.Wait) error {
	begin := time.Now()
	for waited := time.Duration(0); waited < spinBudget; waited = time.Since(begin) {
		if w.Done() {
			return nil
		}
	}

	state := p.newWorkWait(w, begin)
	if err := p.beginWait(state); err != nil {
		return err
	}

	defer p.endWait(state)
	var grace control.GraceTimer
	for !w.Done() {
		state.sincePeerFailure = grace.Elapsed(w.Ticket != 0 && p.PeerFailed())
		if err := p.checkWait(state); err != nil && !w.Done() {
			return p.Fail(w.AddDetails(err))
		}

		if ctx.Err() != nil && !w.Done() {
			return p.interruptedError(ctx, state)
		}

		if time.Since(begin) < yieldTime {
			runtime.Gosched()
			continue
		}

		time.Sleep(pollSleep)
	}

	return nil
}

// statusDelay bounds the time until other ranks know of a submitted ticket.
const statusDelay = 2 * statusInterval

// Diagnose implements control.Plane.
func (p *Plane) Diagnose(w control.Wait, since time.Time) error {
	err := p.checkWait(p.newWorkWait(w, since))
	if err != nil && !errors.Is(err, driver.ErrClosed) && w.IsDone() {
		return nil
	}

	return w.AddDetails(err)
}

// PeerFault implements control.Plane.
func (p *Plane) PeerFault(callText string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return control.PeerFaultError(p.cfg.Group, p.rankStates(&waitState{}), callText)
}
