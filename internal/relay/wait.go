package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
)

// waiting describes a wait: for a step of a track, or for work.
type waiting struct {
	doing func() string
	// track and step are what every rank must have posted; step is 0 in a wait for work.
	track track
	step  uint64
	// exchange tells that the step is one of the control lane, and collective is the ticket of the
	// collective that waits, or 0. They are what others need to know to prove that two ranks will
	// never meet.
	exchange   bool
	collective uint64
	operation  driver.Operation
	begin      time.Time
}

// missing lists the group ranks that have not come. p.mu is held.
func (p *Plane) missing(w *waiting) []int {
	var ranks []int
	for r := range p.rows {
		row := &p.rows[r]
		late := row.submitted < w.collective
		if w.step != 0 {
			late = row.came[w.track] < w.step
		}
		if late && r != p.me {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wait waits until nobody is missing. It has the context's deadline, or else the timeout. p.mu is
// held, and given up meanwhile.
func (p *Plane) wait(ctx context.Context, w *waiting) error {
	w.begin = time.Now()
	deadline, has := ctx.Deadline()
	if !has {
		deadline = w.begin.Add(p.cfg.Timeout)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	p.show(w)
	defer p.conceal(w)
	for {
		missing := p.missing(w)
		if len(missing) == 0 {
			return nil
		}
		if err := p.trouble(w, missing); err != nil {
			return err
		}
		now := time.Now()
		due := !now.Before(deadline)
		switch {
		case due && !p.rhythm.deaf(now):
			return p.timeout(w, missing, now)
		case errors.Is(ctx.Err(), context.Canceled):
			return fmt.Errorf("%s: %w", w.doing(), context.Cause(ctx))
		case due:
			p.pause(nil, time.After(tellInterval))
		default:
			p.pause(ctx.Done(), timer.C)
		}
	}
}

// pause waits until something has changed, the time is over, or the caller is done.
func (p *Plane) pause(done <-chan struct{}, over <-chan time.Time) {
	changed := p.change()
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-changed:
	case <-over:
	case <-done:
	}
}

// trouble says why the wait should end without success, or nil. p.mu is held.
func (p *Plane) trouble(w *waiting, missing []int) error {
	faults := p.closed || !p.settledElsewhere(w)
	if p.cause != nil && faults {
		return p.cause
	}
	if lost := p.lost(missing); len(lost) > 0 {
		return &driver.RankLostError{Ranks: p.world(lost), Doing: w.doing()}
	}
	if faults && p.peerFailed() {
		return fmt.Errorf("%s: %w", w.doing(), driver.ErrFault)
	}
	return p.hopeless(w, missing)
}

// settledElsewhere tells whether a peer that has failed since had seen this step complete: then
// what is missing here is on its way.
func (p *Plane) settledElsewhere(w *waiting) bool {
	return w.step != 0 && slices.ContainsFunc(p.rows, func(r row) bool {
		return r.failed && r.settled[w.track] >= w.step
	})
}

func (p *Plane) peerFailed() bool {
	return slices.ContainsFunc(p.rows, func(r row) bool { return r.failed })
}

// lost lists those of the given group ranks that are lost.
func (p *Plane) lost(ranks []int) []int {
	return slices.DeleteFunc(slices.Clone(ranks), func(r int) bool { return !p.rows[r].lost })
}

// hopeless reports the proof that missing ranks will never come: they have left, or wait for us in
// another place of the program.
func (p *Plane) hopeless(w *waiting, missing []int) error {
	elsewhere := map[int]string{}
	for _, r := range missing {
		if p.stray(w, &p.rows[r]) {
			elsewhere[p.cfg.Group.Ranks[r]] = p.rows[r].describe(time.Now())
		}
	}
	if len(elsewhere) == 0 {
		return nil
	}
	return &driver.StrayError{Doing: w.doing(), Elsewhere: elsewhere}
}

// stray tells whether a rank can never come to the wait w: it waits for us in an exchange and has
// launched fewer collectives than the one we are in, or in a collective that we have not launched
// while we are in an exchange. Its board may be old, but not as to this: what it waits for is us.
func (p *Plane) stray(w *waiting, r *row) bool {
	switch {
	case r.left:
		return true
	case w.collective != 0:
		return r.inExchange > p.rows[p.me].came[trackControl] && r.submitted < w.collective
	case w.exchange:
		return r.inCollective > p.submitted.Load()
	}
	return false
}

func (p *Plane) timeout(w *waiting, missing []int, now time.Time) error {
	activity := map[int]string{}
	for _, r := range missing {
		activity[p.cfg.Group.Ranks[r]] = p.rows[r].describe(now)
	}
	return &driver.TimeoutError{
		Doing:    w.doing(),
		Waited:   now.Sub(w.begin).Round(time.Millisecond),
		Missing:  p.world(missing),
		Activity: activity,
	}
}
