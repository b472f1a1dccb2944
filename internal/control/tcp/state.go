package tcp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// groupState holds what this rank knows about its group. Suppose that this is rank 0 of two ranks:
//
//   - Collectives of the group are numbered. Before rank 0 launches collective 7, it submits ticket
//     7: it announces the number to rank 1. submitted is then 7.
//   - records[1] holds what rank 1 has announced in its messages.
//   - A call of rank 0 that waits for rank 1 is in waits. Messages of rank 1 wake it, and it then
//     checks whether the wait is over.
//   - Rank 0 may observe or cause a fault, for example if rank 1 exits. The error of the first
//     fault becomes cause. From then on, all exchanges fail except those of reports about it.
type groupState struct {
	cfg     Config
	ownRank int // group rank

	submitted          atomic.Uint64 // last ticket that this rank has submitted
	peerFailedOrClosed atomic.Bool   // whether another rank has failed or is lost, or closed is set
	failSignal         chan struct{} // closed when cause is set

	mu              sync.Mutex    // guards the fields below
	cause           error         // nil before the first fault
	closed          bool          // whether this rank has left the group
	records         []rankRecord  // by group rank
	waits           []*waitState  // waits of this rank
	maxTicket       uint64        // highest ticket that other ranks may see; lowered by Withdraw
	changeSignal    chan struct{} // closed by wakeAll; nil until a wait needs it
	stallDetector   stallDetector // detects that this process was stopped
	lastWarning     time.Time     // when this rank last warned of a late rank; zero if it never has
	statusesArrived bool          // whether a status has arrived since the last tick
}

// setMachines sets the names of the ranks' machines, by group rank.
func (s *groupState) setMachines(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Group.Machines = names
}

// recordFault makes err the cause if it is the first fault of this rank, and reports whether it is.
// The caller must hold s.mu.
func (s *groupState) recordFault(err error) bool {
	if s.cause != nil {
		return false
	}

	s.cause = err
	close(s.failSignal)
	s.wakeAll()
	return true
}

// Cause implements control.Plane.
func (s *groupState) Cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// checkUsable returns an error if exchanges on a lane are no longer possible. After a fault, only
// driver.LaneFault can be used. The caller must hold s.mu.
func (s *groupState) checkUsable(lane driver.Lane) error {
	if s.closed {
		return fmt.Errorf("group %s: %w", s.cfg.Group.Name(), driver.ErrClosed)
	}

	if lane == driver.LaneFault {
		return nil
	}

	return s.cause
}

// markLost marks ranks as lost, except those that have left the group.
func (s *groupState) markLost(ranks ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range ranks {
		if !s.records[r].hasLeft {
			s.records[r].isLost = true
			s.peerFailedOrClosed.Store(true)
		}
	}

	s.wakeAll()
}

// nextChange returns a channel that is closed at the next call of wakeAll. The caller must hold
// s.mu.
func (s *groupState) nextChange() <-chan struct{} {
	if s.changeSignal == nil {
		s.changeSignal = make(chan struct{})
	}

	return s.changeSignal
}

// wakeAll wakes all waits of this rank, which then check whether they are over. The caller must
// hold s.mu.
func (s *groupState) wakeAll() {
	if s.changeSignal != nil {
		close(s.changeSignal)
		s.changeSignal = nil
	}
}

// wakeWaitsFor wakes the waits after a message from a rank, if the message may have ended a wait.
// The caller must hold s.mu.
func (s *groupState) wakeWaitsFor(rank int, m message) {
	switch m.kind {
	case kindPost:
		// addPost ignores a post if the rank has failed before the step.
		isRecorded := s.records[rank].stepsOn(m.track).posted == m.step
		if isRecorded {
			countPost(s, m)
		}
	case kindStatus:
		s.statusesArrived = true
		isAnswer := m.step != 0
		if isAnswer { // otherwise, tick wakes the waits, so that they wake rarely
			s.wakeAll()
		}
	default:
		s.wakeAll()
	}
}

// countPost counts a post, another rank's payload for one step of a track. It wakes the waits if
// this was the last post of the step. The caller must hold s.mu.
func countPost(s *groupState, m message) {
	for _, w := range s.waits {
		isAwaited := w.track == m.track && w.step == m.step
		if !isAwaited {
			continue
		}

		w.missingPosts--
		if w.missingPosts <= 0 {
			s.wakeAll()
		}
	}
}

// tick is called every statusInterval. It wakes the waits in two cases. If statuses have arrived,
// they may show a deadlock. If this process has just caught up after it was stopped, waits may have
// timed out: they must return before it is stopped again.
func (s *groupState) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hasCaughtUp := s.stallDetector.tick(now)
	if hasCaughtUp || s.statusesArrived {
		s.statusesArrived = false
		s.wakeAll()
	}
}

// ownStatus returns this rank's status, which it sends to the other ranks. If several waits need
// collectives, it shows the one with the highest ticket: the others need only earlier collectives.
// The caller must hold s.mu.
func (s *groupState) ownStatus() status {
	current := status{submitted: min(s.submitted.Load(), s.maxTicket)}
	for _, w := range s.waits {
		switch {
		case w.collective > current.awaitedTicket:
			current.awaitedTicket = w.collective
			current.operation = w.operation
			current.since = w.begin
		case w.isAgreement:
			current.awaitedStep = w.step
			isInCollective := current.awaitedTicket != 0
			if !isInCollective { // otherwise, since is the begin of the collective's wait
				current.since = w.begin
			}
		}
	}

	return current
}

// removeWait removes w from s.waits. The caller must hold s.mu.
func (s *groupState) removeWait(w *waitState) {
	s.waits = slices.DeleteFunc(s.waits, func(o *waitState) bool { return o == w })
}

// hasUnacknowledgedFault reports whether a rank that still takes part in the group may not know
// that this rank has failed. The caller must hold s.mu.
func hasUnacknowledgedFault(s *groupState) bool {
	for rank := range s.records {
		if rank == s.ownRank {
			continue
		}

		r := &s.records[rank]
		takesPart := r.failed == control.NotFailed && !r.hasLeft && !r.isLost
		if takesPart && !r.hasAckedFail {
			return true
		}
	}

	return false
}

// ranksYetToReport returns the other group ranks whose next report about the failure has not
// arrived. It omits absent ranks, from which none is expected. The caller must hold s.mu.
func (s *groupState) ranksYetToReport() []int {
	var ranks []int
	for r := range s.records {
		record := &s.records[r]
		hasUnreadReport := record.reportsRead < len(record.reports)
		if r != s.ownRank && !record.isAbsent && !hasUnreadReport {
			ranks = append(ranks, r)
		}
	}

	return ranks
}

// markAbsentRanks marks ranks as absent whose next report has not arrived and cannot arrive. The
// caller must hold s.mu.
func (s *groupState) markAbsentRanks() {
	for _, r := range s.ranksYetToReport() {
		record := &s.records[r]
		isFull := !record.hasRoomFor(0) // the rank has sent as many reports as it may
		if record.isLost || record.hasLeft || isFull {
			record.isAbsent = true
		}
	}
}

// decideTimeout bounds each request to the store in Decide. A store on another machine usually
// answers within milliseconds.
const decideTimeout = 3 * time.Second

// Decide proposes a cause of the group's failure and returns the decision, which is the first
// proposal of any rank. A nil proposal only reads the decision, which is nil if there is none yet.
// Decide returns proposal if the store does not answer or proposal is too large.
func (s *groupState) Decide(proposal []byte) []byte {
	if len(proposal) > driver.MaxPayload {
		return proposal
	}

	ctx, cancel := context.WithTimeout(context.Background(), decideTimeout)
	defer cancel()
	key := s.cfg.key("cause")
	if proposal == nil {
		decision, isDecided, err := s.cfg.Store.Peek(ctx, key)
		if err != nil || !isDecided {
			return nil
		}

		return decision
	}

	// CompareSet stores the proposal only if the key has no value yet, and returns the key's value.
	decision, err := s.cfg.Store.CompareSet(ctx, key, nil, proposal)
	if err != nil {
		return proposal
	}

	return decision
}
