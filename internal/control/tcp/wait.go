package tcp

import (
	"context"
	"errors"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// waiting describes a wait: for a step of a track, or for work.
type waiting struct {
	doing func() string
	// track and step are what every rank must have posted; step is 0 in a wait for work.
	track track
	step  uint64
	// ordered reports whether this rank launches no collective in the wait.
	ordered bool
	// exchange reports whether the step is one of the control lane, and collective is the ticket of
	// the collective that waits, or 0. They are what others need to know to prove that two ranks
	// will never meet.
	exchange   bool
	collective uint64
	operation  driver.Operation
	begin      time.Time
	timeout    time.Duration
	// work reports whether what was launched is waited for, and failedFor is how long a peer has
	// been known to have failed meanwhile; it is negative if none has.
	work      bool
	failedFor time.Duration
}

// missing lists the group ranks that have not come. p.mu is held.
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

// wait waits until nobody is missing. It has the context's deadline, or else the timeout. p.mu is
// held, and given up meanwhile.
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
		case q.DeadlinePassed || q.Waited >= q.Timeout: // but messages of others may not be read yet
			p.pause(nil, statusInterval)
		default:
			p.pause(ctx.Done(), q.Timeout-q.Waited, q.Late.Next(q.Waited, q.Warned))
		}
	}
}

// pause waits until something has changed, the least of the times that are not negative is over, or
// the caller is done. p.mu is held, and given up meanwhile.
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

// warn tells of ranks that are late. p.mu is held, and given up meanwhile.
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

// rankStates returns what is known of every rank. What a rank waits for may be out of date, but not
// as to whether it waits for this one. p.mu is held.
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

// peerFault names the peers that have failed; it is called when one has. p.mu is held.
func (p *Plane) peerFault(doing func() string) error {
	return control.SomePeerFault(p.cfg.Group, p.rankStates(&waiting{}), doing)
}

func (p *Plane) peerFailed() bool {
	return slices.ContainsFunc(p.records, func(r rankRecord) bool {
		return r.failed != control.NotFailed
	})
}
