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

// missing lists the group ranks that have not reached the step. s.mu is held.
func (s *groupState) missing(w *waiting) []int {
	var ranks []int
	for r := range s.records {
		record := &s.records[r]
		late := record.submitted < w.collective
		if w.step != 0 {
			late = record.at(w.track).received < w.step
		}
		if late && r != s.me {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wait waits until no rank is missing. It is bounded by the context's deadline, or else by the
// timeout. s.mu is held, except while waiting.
func (s *groupState) wait(ctx context.Context, w *waiting) error {
	w.begin, w.timeout = time.Now(), s.cfg.Timeout
	if deadline, has := ctx.Deadline(); has {
		w.timeout = max(0, deadline.Sub(w.begin))
	}
	s.publish(w)
	defer s.unpublish(w)
	for {
		states, now := s.rankStates(w), time.Now()
		if len(s.missing(w)) == 0 {
			return nil
		}
		q := s.waitStatus(w, now)
		q.DeadlinePassed = errors.Is(ctx.Err(), context.DeadlineExceeded)
		v := control.Judge(&q, states)
		switch {
		case v.Err != nil:
			return v.Err
		case errors.Is(ctx.Err(), context.Canceled):
			return control.Interrupted(&q, states, context.Cause(ctx))
		case v.Warning != nil:
			s.warn(v.Warning)
		case q.DeadlinePassed || q.Waited >= q.Timeout: // but messages of others may be unread
			s.pause(nil, statusInterval)
		default:
			s.pause(ctx.Done(), q.Timeout-q.Waited, q.Late.Next(q.Waited, q.Warned))
		}
	}
}

// pause waits until a record changes, the shortest of the nonnegative times has passed, or done is
// closed. s.mu is held, except while waiting.
func (s *groupState) pause(done <-chan struct{}, times ...time.Duration) {
	changed := s.change()
	var over <-chan time.Time
	if times = slices.DeleteFunc(times, func(d time.Duration) bool { return d < 0 }); len(times) > 0 {
		timer := time.NewTimer(slices.Min(times))
		defer timer.Stop()
		over = timer.C
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
	case <-over:
	case <-done:
	}
}

// warn issues a warning of late ranks. s.mu is held, except during the call.
func (s *groupState) warn(late *driver.LateWarning) {
	s.warned = time.Now()
	s.mu.Unlock()
	defer s.mu.Lock()
	s.cfg.Late.Warn(*late)
}

// waitStatus describes a wait at this moment, for control.Judge. s.mu is held.
func (s *groupState) waitStatus(w *waiting, now time.Time) control.WaitStatus {
	q := control.WaitStatus{
		Group: s.cfg.Group, Doing: w.doing, Collective: w.collective,
		Exchange: w.exchange || w.ordered,
		Work:     w.work, Cause: s.cause, Closed: s.closed, FailedFor: w.failedFor,
		Waited: now.Sub(w.begin), Timeout: w.timeout, Stale: s.stalls.mayBeStale(now),
		Late: s.cfg.Late, Warned: -1,
	}
	if w.work && q.Late.After > 0 {
		q.Late.After += statusDelay
	}
	if !s.warned.IsZero() {
		q.Warned = max(0, now.Sub(s.warned))
	}
	return q
}

// rankStates returns the states of all ranks for a wait. The activity of a rank may be out of date,
// but Missing is not. s.mu is held.
func (s *groupState) rankStates(w *waiting) []control.RankState {
	states, now := make([]control.RankState, len(s.records)), time.Now()
	for r := range s.records {
		states[r] = s.records[r].state(w, now)
	}
	for _, r := range s.missing(w) {
		states[r].Missing = true
	}
	states[s.me].Submitted = s.submitted.Load()
	return states
}

// peerFault returns a PeerError that names the failed peers. There must be one. s.mu is held.
func (s *groupState) peerFault(doing func() string) error {
	return control.SomePeerFault(s.cfg.Group, s.rankStates(&waiting{}), doing)
}

func (s *groupState) peerFailed() bool {
	return slices.ContainsFunc(s.records, func(r rankRecord) bool {
		return r.failed != control.NotFailed
	})
}

// interrupted returns the error of a wait whose context has ended.
func (s *groupState) interrupted(ctx context.Context, w *waiting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.waitStatus(w, time.Now())
	return control.Interrupted(&q, s.rankStates(w), context.Cause(ctx))
}

// waitFor describes a wait for work. Its timeout allows for the delay with which submissions of
// other ranks become known here.
func (s *groupState) waitFor(w control.Wait, begin time.Time) *waiting {
	return &waiting{
		doing: w.Doing, collective: w.Ticket, operation: w.Operation, begin: begin,
		timeout: s.cfg.Timeout + statusDelay, work: true, failedFor: -1,
	}
}

func (s *groupState) beginWait(w *waiting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.usable(driver.LaneControl)
	}
	s.publish(w)
	return nil
}

func (s *groupState) endWait(w *waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpublish(w)
}

// checkWait calls verdict with s.mu held.
func (s *groupState) checkWait(w *waiting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.verdict(w, time.Now())
}

// verdict returns the reason why the work may never end, or nil, and warns of late ranks. s.mu is
// held, except during a warning.
func (s *groupState) verdict(w *waiting, now time.Time) error {
	q := s.waitStatus(w, now)
	v := control.Judge(&q, s.rankStates(w))
	if v.Warning != nil {
		s.warn(v.Warning)
	}
	return v.Err
}
