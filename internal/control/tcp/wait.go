package tcp

import (
	"context"
	"errors"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// waitState describes a wait of this rank, for work or for a step of a track.
type waitState struct {
	callText func() string // describes the call in errors
	// track and step identify the post (message for one step) that this rank expects from every
	// rank. step is 0 in a wait for work.
	track        track
	step         uint64
	missingPosts int  // number of posts that have not arrived
	isOrdered    bool // whether this rank launches no collective during the wait
	isAgreement  bool // whether the wait is part of an exchange on driver.LaneControl
	isForWork    bool
	collective   uint64           // ticket that all ranks must submit, or 0
	operation    driver.Operation // of the collective
	begin        time.Time
	timeout      time.Duration
	// sincePeerFailure is negative until this wait notices the failure of a peer.
	sincePeerFailure time.Duration
}

// missing lists the group ranks that have not posted the step or, without a step, have not
// submitted the collective. The caller must hold s.mu.
func (s *groupState) missing(w *waitState) []int {
	var ranks []int
	for r := range s.records {
		record := &s.records[r]
		isMissing := record.submitted < w.collective
		if w.step != 0 {
			isMissing = record.stepsOn(w.track).received < w.step
		}
		if isMissing && r != s.ownRank {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// wait waits until no rank is missing, up to the deadline of ctx or the group's timeout. The
// caller must hold s.mu, which is released during waits.
func (s *groupState) wait(ctx context.Context, w *waitState) error {
	w.begin = time.Now()
	w.timeout = s.cfg.Group.Timeout.Get()
	if deadline, ok := ctx.Deadline(); ok {
		w.timeout = max(0, deadline.Sub(w.begin))
	}
	w.missingPosts = len(s.missing(w))
	s.waits = append(s.waits, w)
	defer s.removeWait(w)
	for {
		status := s.waitStatus(w, time.Now())
		ctxErr := ctx.Err()
		status.NoteDeadline(ctx, ctxErr)
		states := s.rankStates(w)
		if len(s.missing(w)) == 0 {
			return nil
		}
		verdict := control.Judge(&status, states)
		switch {
		case verdict.Err != nil:
			return verdict.Err
		case errors.Is(ctxErr, context.Canceled):
			return control.InterruptedWaitError(&status, states, context.Cause(ctx))
		case verdict.Warning != nil:
			s.warn(verdict.Warning)
		case status.DeadlinePassed || status.Waited >= status.Timeout:
			// Unread messages may show that the wait is over, so Judge returns no error yet.
			s.awaitChange(nil, statusInterval)
		default:
			nextWarning := status.Late.Next(status.Waited, status.SinceWarning)
			s.awaitChange(ctx.Done(), status.Timeout-status.Waited, nextWarning)
		}
	}
}

// awaitChange waits until a record changes, done is closed, or the shortest of limits has passed.
// It ignores negative limits. The caller must hold s.mu, which is released during the wait.
func (s *groupState) awaitChange(done <-chan struct{}, limits ...time.Duration) {
	changed := s.recordsChanged()
	var expired <-chan time.Time
	limits = slices.DeleteFunc(limits, func(d time.Duration) bool { return d < 0 })
	if len(limits) > 0 {
		timer := time.NewTimer(slices.Min(limits))
		defer timer.Stop()
		expired = timer.C
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
	case <-expired:
	case <-done:
	}
}

// warn calls Config.Late.Warn. The caller must hold s.mu, which is released during the callback.
func (s *groupState) warn(warning *driver.LateWarning) {
	s.lastWarning = time.Now()
	s.mu.Unlock()
	defer s.mu.Lock()
	s.cfg.Late.Warn(*warning)
}

func (s *groupState) waitStatus(w *waitState, now time.Time) control.WaitStatus {
	status := control.WaitStatus{
		Group: s.cfg.Group, CallText: w.callText, Collective: w.collective,
		IsExchange: w.isAgreement || w.isOrdered,
		IsWork:     w.isForWork, Cause: s.cause, Closed: s.closed, SincePeerFailure: w.sincePeerFailure,
		Waited: now.Sub(w.begin), Timeout: w.timeout, Stale: s.stallDetector.mayBeStale(now),
		Late: s.cfg.Late, SinceWarning: -1,
	}
	if w.isForWork && status.Late.After > 0 {
		status.Late.After += statusDelay
	}
	if !s.lastWarning.IsZero() {
		status.SinceWarning = max(0, now.Sub(s.lastWarning))
	}
	return status
}

// rankStates returns the states of all ranks, by group rank. The activities of other ranks may be
// outdated. The caller must hold s.mu.
func (s *groupState) rankStates(w *waitState) []control.RankState {
	states := make([]control.RankState, len(s.records))
	now := time.Now()
	for r := range s.records {
		states[r] = s.records[r].state(w, now)
	}
	for _, r := range s.missing(w) {
		states[r].Missing = true
	}
	states[s.ownRank].Submitted = s.submitted.Load()
	return states
}

// peerFault returns a PeerError. At least one peer must have failed. The caller must hold s.mu.
func (s *groupState) peerFault(callText func() string) error {
	return control.NonNilFailedPeersError(s.cfg.Group, s.rankStates(&waitState{}), callText)
}

func (s *groupState) peerFailed() bool {
	return slices.ContainsFunc(s.records, func(r rankRecord) bool {
		return r.failed != control.NotFailed
	})
}

// interruptedError returns the error for a wait whose context has ended.
func (s *groupState) interruptedError(ctx context.Context, w *waitState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.waitStatus(w, time.Now())
	status.NoteDeadline(ctx, ctx.Err())
	return control.InterruptedWaitError(&status, s.rankStates(w), context.Cause(ctx))
}

// newWorkWait returns the state of a wait for work. It adds statusDelay to the timeout, because
// this rank learns of other ranks' submissions with this delay.
func (s *groupState) newWorkWait(w control.Wait, begin time.Time) *waitState {
	return &waitState{
		callText: w.CallText, collective: w.Ticket, operation: w.Operation, begin: begin,
		timeout: s.cfg.Group.Timeout.Get() + statusDelay, isForWork: true, sincePeerFailure: -1,
	}
}

// beginWait shows w in this rank's status until endWait. It returns an error if the plane is
// closed.
func (s *groupState) beginWait(w *waitState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.checkUsable(driver.LaneControl)
	}
	s.waits = append(s.waits, w)
	return nil
}

func (s *groupState) endWait(w *waitState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeWait(w)
}

func (s *groupState) checkWait(w *waitState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judgeWait(w, time.Now())
}

// judgeWait returns an error if the work may never complete, or nil. It also warns of late ranks.
// The caller must hold s.mu, which is released during a warning.
func (s *groupState) judgeWait(w *waitState, now time.Time) error {
	status := s.waitStatus(w, now)
	verdict := control.Judge(&status, s.rankStates(w))
	if verdict.Warning != nil {
		s.warn(verdict.Warning)
	}
	return verdict.Err
}

func (s *groupState) Departed() (lostRanks, leftRanks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return control.Departed(s.cfg.Group, s.rankStates(&waitState{}))
}
