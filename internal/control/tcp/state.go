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

// groupState holds the state of a group as far as this rank knows it.
type groupState struct {
	cfg     Config
	ownRank int // group rank

	submitted          atomic.Uint64 // last ticket (number of a collective) of this rank
	peerFailedOrClosed atomic.Bool   // whether a peer has failed or is lost, or the plane is closed
	failSignal         chan struct{} // closed when cause is set

	mu              sync.Mutex    // guards the fields below
	cause           error         // error with which this rank failed, or nil
	closed          bool          // whether this rank has left the group
	records         []rankRecord  // by group rank
	waits           []*waitState  // waits of this rank
	maxTicket       uint64        // highest ticket that other ranks may see; see Withdraw
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

// Cause implements control.Plane.
func (s *groupState) Cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// recordFault records err if it is the first fault of this rank, and reports whether it is. The
// caller must hold s.mu.
func (s *groupState) recordFault(err error) bool {
	if s.cause != nil {
		return false
	}

	s.cause = err
	close(s.failSignal)
	s.wakeAll()
	return true
}

// checkUsable returns an error if exchanges on a lane are no longer possible. After a failure, only
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

// wakeAll wakes all waits of this rank, which then check whether they are over. The caller must
// hold s.mu.
func (s *groupState) wakeAll() {
	if s.changeSignal != nil {
		close(s.changeSignal)
		s.changeSignal = nil
	}
}

// wakeWaitsFor wakes waits that a message from a rank may have ended. To wake them rarely, it makes
// two exceptions:
//
//   - A post (payload for one step of a track) wakes waits only if they expect no other post.
//   - A status that answers no request wakes no wait. The next tick does it.
//
// The caller must hold s.mu.
func (s *groupState) wakeWaitsFor(rank int, m message) {
	switch m.kind {
	case kindPost:
		if s.records[rank].stepsOn(m.track).received != m.step {
			return // the rank failed before this step, so addPost ignored the post
		}

		for _, w := range s.waits {
			if w.track != m.track || w.step != m.step {
				continue
			}

			w.missingPosts--
			if w.missingPosts <= 0 {
				s.wakeAll()
			}
		}
	case kindStatus:
		s.statusesArrived = true
		isAnswer := m.step != 0
		if isAnswer {
			s.wakeAll()
		}
	default:
		s.wakeAll()
	}
}

// nextChange returns a channel that is closed at the next call of wakeAll. The caller must hold
// s.mu.
func (s *groupState) nextChange() <-chan struct{} {
	if s.changeSignal == nil {
		s.changeSignal = make(chan struct{})
	}

	return s.changeSignal
}

// tick is called regularly. It wakes the waits if statuses have arrived, because these may show a
// deadlock. It also wakes them once this process has caught up after a stall, so that waits that
// have timed out return before another stall.
func (s *groupState) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hasCaughtUp := s.stallDetector.tick(now)
	if hasCaughtUp || s.statusesArrived {
		s.statusesArrived = false
		s.wakeAll()
	}
}

// ownStatus returns this rank's status. If there are several waits for collectives, the status
// describes the one with the highest ticket (see publishLatest in package shm). The caller must
// hold s.mu.
func (s *groupState) ownStatus() status {
	current := status{submitted: min(s.submitted.Load(), s.maxTicket)}
	for _, w := range s.waits {
		switch {
		case w.collective > current.inCollective:
			current.inCollective = w.collective
			current.operation = w.operation
			current.since = w.begin
		case w.isAgreement:
			current.inExchange = w.step
			if current.inCollective == 0 { // otherwise, since is the begin of the collective's wait
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
		if takesPart && !r.hasAckedFault {
			return true
		}
	}

	return false
}

// markAbsentRanks marks the ranks as absent whose next fault report has not arrived and cannot
// arrive. The caller must hold s.mu.
func (s *groupState) markAbsentRanks() {
	for _, r := range s.ranksYetToReport() {
		record := &s.records[r]
		isFull := !record.hasRoomFor(0) // the rank has sent as many reports as it may
		if record.isLost || record.hasLeft || isFull {
			record.isAbsent = true
		}
	}
}

// ranksYetToReport returns the group ranks whose next fault report has not arrived, except this
// rank and absent ranks. The caller must hold s.mu.
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
		decision, ok, err := s.cfg.Store.Peek(ctx, key)
		if err != nil || !ok {
			return nil
		}

		return decision
	}

	decision, err := s.cfg.Store.CompareSet(ctx, key, nil, proposal)
	if err != nil {
		return proposal
	}

	return decision
}
