package tcp

import (
	"context"
	"errors"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// A rank waits for other ranks in two kinds of calls. Suppose that this is rank 0 of three ranks:
//
//   - In step 3 of a track (a sequence of exchanges), every rank sends a post, a message with its
//     payload. Rank 0 waits for the posts of ranks 1 and 2.
//   - Rank 0 has launched collective 7 on a GPU, and waits until the work completes. For this,
//     ranks 1 and 2 must launch collective 7, too. They announce this by submitting ticket 7.
//
// In both cases, a rank is missing until its messages show that it has posted or submitted. During
// a wait, control.Judge decides whether the wait continues. Its verdict contains an error if, for
// example, rank 1 has failed or is missing after the timeout. It contains a warning if rank 1 is
// late. After this process was stopped, no rank counts as late until its messages have been read.

// waitState describes a wait of this rank.
type waitState struct {
	callText func() string // describes the waiting call in errors
	// track and step identify the awaited posts. step is 0 in a wait for work.
	track        track
	step         uint64
	missingPosts int // number of awaited posts that have not arrived
	// collective is the ticket that all ranks must submit, or 0. A comparison of calls sets it, too.
	collective  uint64
	operation   driver.Operation // operation of the collective
	isOrdered   bool             // whether this rank launches no collective during the wait
	isAgreement bool             // whether the wait is part of an exchange on driver.LaneControl
	isForWork   bool             // whether the wait is for work
	begin       time.Time        // when the wait began
	timeout     time.Duration    // after which missing ranks are late
	// sincePeerFailure is used only in waits for work. It is the time since this wait noticed that
	// another rank has failed, or negative if none has. The waiting goroutine sets it without holding
	// s.mu.
	sincePeerFailure time.Duration
}

// missingRanks lists the missing group ranks of a wait. The caller must hold s.mu.
func (s *groupState) missingRanks(w *waitState) []int {
	var ranks []int
	for r := range s.records {
		record := &s.records[r]
		isMissing := record.submitted < w.collective
		if w.step != 0 {
			isMissing = record.stepsOn(w.track).posted < w.step
		}

		if isMissing && r != s.ownRank {
			ranks = append(ranks, r)
		}
	}

	return ranks
}

// wait waits until all ranks have posted w.step. It waits up to the deadline of ctx, or up to the
// group's timeout if ctx has none. The caller must hold s.mu, which is released during waits.
func (s *groupState) wait(ctx context.Context, w *waitState) error {
	w.begin = time.Now()
	w.timeout = s.cfg.Group.Timeout.Get()
	if deadline, ok := ctx.Deadline(); ok {
		w.timeout = max(0, deadline.Sub(w.begin))
	}

	w.missingPosts = len(s.missingRanks(w))
	s.waits = append(s.waits, w)
	defer s.removeWait(w)
	for len(s.missingRanks(w)) > 0 {
		if err := continueWait(ctx, s, w); err != nil {
			return err
		}
	}

	return nil
}

// continueWait returns an error if the wait w must end. Otherwise, it issues a warning that is due,
// or waits until a message arrives, ctx is done or time has passed. The caller must hold s.mu,
// which is released meanwhile.
func continueWait(ctx context.Context, s *groupState, w *waitState) error {
	description := s.waitStatus(w, time.Now())
	ctxErr := ctx.Err() // read once, because it may change
	description.NoteDeadline(ctx, ctxErr)
	states := s.rankStates(w)
	verdict := control.Judge(&description, states)
	if verdict.Err != nil {
		return verdict.Err
	}

	isCanceled := errors.Is(ctxErr, context.Canceled)
	if isCanceled {
		return control.InterruptedWaitError(&description, states, context.Cause(ctx))
	}

	if verdict.Warning != nil {
		s.warn(verdict.Warning)
		return nil
	}

	timeLeft := description.Timeout - description.Waited
	hasTimedOut := description.DeadlinePassed || timeLeft <= 0
	if hasTimedOut {
		// Judge has returned no error, because unread messages may show that no rank is missing. Wait
		// without ctx, which may be done.
		s.awaitChange(nil, statusInterval)
		return nil
	}

	untilWarning := description.Late.Next(description.Waited, description.SinceWarning)
	if description.Stale {
		untilWarning = statusInterval // Judge returns no warning, even if one is due.
	}

	s.awaitChange(ctx.Done(), timeLeft, untilWarning)
	return nil
}

// awaitChange waits until wakeAll is called, done is closed, or the shortest of limits has passed.
// It ignores negative limits. A nil done is never closed. The caller must hold s.mu, which is
// released during the wait.
func (s *groupState) awaitChange(done <-chan struct{}, limits ...time.Duration) {
	changed := s.nextChange() // wakeAll closes it
	var expired <-chan time.Time
	limits = slices.DeleteFunc(limits, func(d time.Duration) bool { return d < 0 })
	if len(limits) > 0 { // otherwise, expired stays nil, and select ignores it
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

// warn passes a warning about late ranks to the function that the user has set. The caller must
// hold s.mu, which is released during the call.
func (s *groupState) warn(warning *driver.LateWarning) {
	s.lastWarning = time.Now()
	s.mu.Unlock()
	defer s.mu.Lock()
	s.cfg.Late.Warn(*warning)
}

// waitStatus describes a wait for control.Judge. The caller must add the deadline of the wait's
// context, and must hold s.mu.
func (s *groupState) waitStatus(w *waitState, now time.Time) control.WaitStatus {
	description := control.WaitStatus{
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
	hasWarnings := description.Late.After > 0
	if w.isForWork && hasWarnings {
		description.Late.After += statusDelay // until this rank knows of other ranks' tickets
	}

	if !s.lastWarning.IsZero() {
		description.SinceWarning = max(0, now.Sub(s.lastWarning))
	}

	return description
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

// newWorkWait returns the state of a wait for work. Other ranks' tickets arrive up to statusDelay
// late, so this rank waits longer for them than the group's timeout.
func (s *groupState) newWorkWait(w control.Wait, begin time.Time) *waitState {
	return &waitState{
		callText:         w.CallText,
		isForWork:        true,
		collective:       w.Ticket,
		operation:        w.Operation,
		begin:            begin,
		timeout:          s.cfg.Group.Timeout.Get() + statusDelay,
		sincePeerFailure: -1, // no other rank has failed yet
	}
}

// beginWait shows a wait for work to the other ranks until endWait. It returns an error if this
// rank has left the group.
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

// checkWait calls judgeWait with the current time. The caller must not hold s.mu.
func (s *groupState) checkWait(w *waitState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judgeWait(w, time.Now())
}

// judgeWait returns an error if the work of w may never complete. It also issues a warning that is
// due. The caller must hold s.mu, which is released during the warning.
func (s *groupState) judgeWait(w *waitState, now time.Time) error {
	description := s.waitStatus(w, now)
	verdict := control.Judge(&description, s.rankStates(w))
	if verdict.Warning != nil {
		s.warn(verdict.Warning)
	}

	return verdict.Err
}

// interruptedError returns the error of a wait for work whose context has ended.
func (s *groupState) interruptedError(ctx context.Context, w *waitState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	description := s.waitStatus(w, time.Now())
	description.NoteDeadline(ctx, ctx.Err())
	return control.InterruptedWaitError(&description, s.rankStates(w), context.Cause(ctx))
}

// peerAnnouncedFailure reports whether another rank has announced that it has failed. It ignores
// ranks that exited without a message. The caller must hold s.mu.
func (s *groupState) peerAnnouncedFailure() bool {
	return slices.ContainsFunc(s.records, func(r rankRecord) bool {
		return r.failed != control.NotFailed
	})
}

// newPeerError returns a driver.PeerError that lists the other ranks that have failed. The caller
// must hold s.mu.
func (s *groupState) newPeerError(callText func() string) error {
	states := s.rankStates(&waitState{}) // of no particular wait
	return control.NonNilFailedPeersError(s.cfg.Group, states, callText)
}

// Departed implements control.Plane.
func (s *groupState) Departed() (lostRanks, leftRanks []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return control.Departed(s.cfg.Group, s.rankStates(&waitState{}))
}
