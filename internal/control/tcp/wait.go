package tcp

import (
	"context"
	"errors"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// waitState describes a wait of this rank. The rank waits either for launched work to complete, or
// for the other ranks to post a step of a track (a sequence of exchanges).
type waitState struct {
	callText func() string // describes the call in errors
	// track and step identify the post (message for one step) that this rank expects from every
	// rank. step is 0 in a wait for work.
	track        track
	step         uint64
	missingPosts int              // number of expected posts that have not arrived
	isOrdered    bool             // whether this rank launches no collective during the wait
	isAgreement  bool             // whether the wait is part of an exchange on driver.LaneControl
	isForWork    bool             // whether the wait is for work
	collective   uint64           // ticket (number of a collective) to be submitted by all, or 0
	operation    driver.Operation // operation of the collective
	begin        time.Time        // when the wait began
	timeout      time.Duration    // after which missing ranks are late
	// sincePeerFailure is used only in waits for work. It is the time since this wait noticed that a
	// peer has failed, or negative if none has. The waiting goroutine sets it without holding s.mu.
	sincePeerFailure time.Duration
}

// missingRanks lists the group ranks that have not posted the step of a wait. In a wait for work,
// it lists the ranks that have not submitted the collective. The caller must hold s.mu.
func (s *groupState) missingRanks(w *waitState) []int {
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

// wait waits until all ranks have posted the step of w. It waits up to the deadline of ctx, or up
// to the group's timeout if ctx has none. The caller must hold s.mu, which is released during
// waits.
func (s *groupState) wait(ctx context.Context, w *waitState) error {
	w.begin = time.Now()
	w.timeout = s.cfg.Group.Timeout.Get()
	if deadline, ok := ctx.Deadline(); ok {
		w.timeout = max(0, deadline.Sub(w.begin))
	}

	w.missingPosts = len(s.missingRanks(w))
	s.waits = append(s.waits, w)
	defer s.removeWait(w)
	for {
		status := s.waitStatus(w, time.Now())
		ctxErr := ctx.Err() // read once, so that status and the cases below agree
		status.NoteDeadline(ctx, ctxErr)
		if len(s.missingRanks(w)) == 0 {
			return nil
		}

		states := s.rankStates(w)
		verdict := control.Judge(&status, states)
		switch {
		case verdict.Err != nil:
			return verdict.Err
		case errors.Is(ctxErr, context.Canceled):
			return control.InterruptedWaitError(&status, states, context.Cause(ctx))
		case verdict.Warning != nil:
			s.warn(verdict.Warning)
		case status.DeadlinePassed || status.Waited >= status.Timeout:
			// Judge returns no error yet, because unread messages may show that the wait is over.
			// Wait without ctx, which may be done.
			s.awaitChange(nil, statusInterval)
		default:
			nextWarning := status.Late.Next(status.Waited, status.SinceWarning)
			s.awaitChange(ctx.Done(), status.Timeout-status.Waited, nextWarning)
		}
	}
}

// awaitChange waits until wakeAll is called, done is closed, or the shortest of limits has passed.
// It ignores negative limits. A nil done is never closed. The caller must hold s.mu, which is
// released during the wait.
func (s *groupState) awaitChange(done <-chan struct{}, limits ...time.Duration) {
	changed := s.nextChange()
	var expired <-chan time.Time // stays nil, which blocks forever, without a limit
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

// warn passes a warning of late ranks to Config.Late.Warn. The caller must hold s.mu, which is
// released during the callback.
func (s *groupState) warn(warning *driver.LateWarning) {
	s.lastWarning = time.Now()
	s.mu.Unlock()
	defer s.mu.Lock()
	s.cfg.Late.Warn(*warning)
}

// waitStatus describes a wait for control.Judge, without its deadline. The caller must hold s.mu.
func (s *groupState) waitStatus(w *waitState, now time.Time) control.WaitStatus {
	status := control.WaitStatus{
		Group:            s.cfg.Group,
		CallText:         w.callText,
		Collective:       w.collective,
		IsExchange:       w.isAgreement || w.isOrdered,
		IsWork:           w.isForWork,
		Cause:            s.cause,
		Closed:           s.closed,
		Waited:           now.Sub(w.begin),
		Timeout:          w.timeout,
		Stale:            s.stallDetector.mayBeStale(now),
		SincePeerFailure: w.sincePeerFailure,
		Late:             s.cfg.Late,
		SinceWarning:     -1, // there was no warning
	}
	if w.isForWork && status.Late.After > 0 { // 0 disables warnings
		status.Late.After += statusDelay // until this rank knows of other ranks' submissions
	}

	if !s.lastWarning.IsZero() {
		status.SinceWarning = max(0, now.Sub(s.lastWarning))
	}

	return status
}

// rankStates returns the states of all ranks for control.Judge, by group rank. The states of other
// ranks are those of their latest messages. The caller must hold s.mu.
func (s *groupState) rankStates(w *waitState) []control.RankState {
	states := make([]control.RankState, len(s.records))
	now := time.Now()
	for r := range s.records {
		states[r] = s.records[r].state(w, now)
	}

	for _, r := range s.missingRanks(w) {
		states[r].Missing = true
	}

	states[s.ownRank].Submitted = s.submitted.Load()
	return states
}

// newPeerError returns a driver.PeerError that lists the failed peers. The caller must hold s.mu.
func (s *groupState) newPeerError(callText func() string) error {
	states := s.rankStates(&waitState{}) // of no particular wait
	return control.NonNilFailedPeersError(s.cfg.Group, states, callText)
}

// peerAnnouncedFailure reports whether a peer has sent a message about its failure. Unlike
// PeerFailed, it ignores lost peers. The caller must hold s.mu.
func (s *groupState) peerAnnouncedFailure() bool {
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
		callText:         w.CallText,
		isForWork:        true,
		collective:       w.Ticket,
		operation:        w.Operation,
		begin:            begin,
		timeout:          s.cfg.Group.Timeout.Get() + statusDelay,
		sincePeerFailure: -1, // no peer has failed yet
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

// endWait undoes beginWait.
func (s *groupState) endWait(w *waitState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeWait(w)
}

// checkWait is judgeWait at the current time, for callers that do not hold s.mu.
func (s *groupState) checkWait(w *waitState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judgeWait(w, time.Now())
}

// judgeWait warns of late ranks if a warning is due. It returns an error if the work of w may never
// complete. The caller must hold s.mu, which is released during a warning.
func (s *groupState) judgeWait(w *waitState, now time.Time) error {
	status := s.waitStatus(w, now)
	verdict := control.Judge(&status, s.rankStates(w))
	if verdict.Warning != nil {
		s.warn(verdict.Warning)
	}

	return verdict.Err
}

// Departed implements control.Plane.
func (s *groupState) Departed() (lostRanks, leftRanks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return control.Departed(s.cfg.Group, s.rankStates(&waitState{}))
}
