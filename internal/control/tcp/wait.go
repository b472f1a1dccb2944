package tcp

import (
	"context"
	"errors"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// waiting describes a wait for a step of a track, or for work.
type waiting struct {
	doing func() string
	// track and step identify the post that every rank must have sent; step is 0 in a wait for
	// work.
	track track
	step  uint64
	// ordered is set if this rank launches no collective during the wait.
	ordered bool
	// exchange is set if the step is one of the control lane, and collective is the ticket of the
	// collective that waits, or 0. Other ranks need them to prove that two ranks will never meet.
	exchange   bool
	collective uint64
	operation  driver.Operation
	begin      time.Time
	timeout    time.Duration
	// work is set in a wait for launched work to end. failedFor is the time for which a peer has
	// been known to have failed meanwhile; it is negative if none has.
	work      bool
	failedFor time.Duration
}

// missing lists the group ranks that have not reached the step. p.mu is held.
func (p *Plane) missing(w *waiting) []int {
	var ranks []int
	for r := range p.records {
		record := &p.records[r]
		late := record.submitted < w.collective
		if w.step != 0 {
			late = record.at(w.track).received < w.step
		}
		if late && r != p.me {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wait waits until no rank is missing. It is bounded by the context's deadline, or else by the
// timeout. p.mu is held, except while waiting.
func (p *Plane) wait(ctx context.Context, w *waiting) error {
	w.begin, w.timeout = time.Now(), p.cfg.Timeout
	if deadline, has := ctx.Deadline(); has {
		w.timeout = max(0, deadline.Sub(w.begin))
	}
	p.publish(w)
	defer p.unpublish(w)
	for {
		states, now := p.rankStates(w), time.Now()
		if len(p.missing(w)) == 0 {
			return nil
		}
		q := p.waitStatus(w, now)
		q.DeadlinePassed = errors.Is(ctx.Err(), context.DeadlineExceeded)
		v := control.Judge(&q, states)
		switch {
		case v.Err != nil:
			return v.Err
		case errors.Is(ctx.Err(), context.Canceled):
			return control.Interrupted(&q, states, context.Cause(ctx))
		case v.Warning != nil:
			p.warn(v.Warning)
		case q.DeadlinePassed || q.Waited >= q.Timeout: // but messages of others may be unread
			p.pause(nil, statusInterval)
		default:
			p.pause(ctx.Done(), q.Timeout-q.Waited, q.Late.Next(q.Waited, q.Warned))
		}
	}
}

// pause waits until a record changes, the shortest of the nonnegative times has passed, or done is
// closed. p.mu is held, except while waiting.
func (p *Plane) pause(done <-chan struct{}, times ...time.Duration) {
	changed := p.change()
	var over <-chan time.Time
	if times = slices.DeleteFunc(times, func(d time.Duration) bool { return d < 0 }); len(times) > 0 {
		timer := time.NewTimer(slices.Min(times))
		defer timer.Stop()
		over = timer.C
	}
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-changed:
	case <-over:
	case <-done:
	}
}

// warn issues a warning of late ranks. p.mu is held, except during the call.
func (p *Plane) warn(late *driver.LateWarning) {
	p.warned = time.Now()
	p.mu.Unlock()
	defer p.mu.Lock()
	p.cfg.Late.Warn(*late)
}

// waitStatus describes a wait at this moment, for control.Judge. p.mu is held.
func (p *Plane) waitStatus(w *waiting, now time.Time) control.WaitStatus {
	q := control.WaitStatus{
		Group: p.cfg.Group, Doing: w.doing, Collective: w.collective,
		Exchange: w.exchange || w.ordered,
		Work:     w.work, Cause: p.cause, Closed: p.closed, FailedFor: w.failedFor,
		Waited: now.Sub(w.begin), Timeout: w.timeout, Stale: p.stalls.mayBeStale(now),
		Late: p.cfg.Late, Warned: -1,
	}
	if w.work && q.Late.After > 0 {
		q.Late.After += statusDelay
	}
	if !p.warned.IsZero() {
		q.Warned = max(0, now.Sub(p.warned))
	}
	return q
}

// rankStates returns the states of all ranks for a wait. The activity of a rank may be out of date,
// but Missing is not. p.mu is held.
func (p *Plane) rankStates(w *waiting) []control.RankState {
	states, now := make([]control.RankState, len(p.records)), time.Now()
	for r := range p.records {
		states[r] = p.records[r].state(w, now)
	}
	for _, r := range p.missing(w) {
		states[r].Missing = true
	}
	states[p.me].Submitted = p.submitted.Load()
	return states
}

// peerFault returns a PeerError that names the failed peers. There must be one. p.mu is held.
func (p *Plane) peerFault(doing func() string) error {
	return control.SomePeerFault(p.cfg.Group, p.rankStates(&waiting{}), doing)
}

func (p *Plane) peerFailed() bool {
	return slices.ContainsFunc(p.records, func(r rankRecord) bool {
		return r.failed != control.NotFailed
	})
}
