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

	submitted          atomic.Uint64 // last ticket of this rank
	peerFailedOrClosed atomic.Bool
	failSignal         chan struct{} // closed when cause is set

	mu              sync.Mutex // guards the fields below
	cause           error      // error with which this rank failed, or nil
	closed          bool
	records         []rankRecord  // by group rank
	waits           []*waitState  // waits of this rank
	maxTicket       uint64        // highest ticket that other ranks may see; see Withdraw
	changeSignal    chan struct{} // closed at the next change; nil if there is no wait for a change
	stallDetector   stallDetector
	lastWarning     time.Time // of a late rank
	statusesArrived bool      // whether a status has arrived since the last tick
}

func (s *groupState) setMachines(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg.Group.Machines = names
}

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

// checkUsable returns an error if a lane can no longer be used. The caller must hold s.mu.
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

// wakeAll wakes all waits of this rank. The caller must hold s.mu.
func (s *groupState) wakeAll() {
	if s.changeSignal != nil {
		close(s.changeSignal)
		s.changeSignal = nil
	}
}

// wakeWaitsFor wakes waits that a message from a rank may have ended. To wake them rarely, it
// wakes none for a post that other ranks' posts must follow, and leaves it to the next tick for a
// status that answers no request. The caller must hold s.mu.
func (s *groupState) wakeWaitsFor(rank int, m message) {
	switch m.kind {
	case kindPost:
		if s.records[rank].stepsOn(m.track).received != m.step {
			return // the rank failed before this step, so addPost ignored the post
		}
		for _, w := range s.waits {
			if w.step != m.step || w.track != m.track {
				continue
			}
			w.missingPosts--
			if w.missingPosts <= 0 {
				s.wakeAll()
			}
		}
	case kindStatus:
		s.statusesArrived = true
		if m.step != 0 {
			s.wakeAll()
		}
	default:
		s.wakeAll()
	}
}

// recordsChanged returns a channel that is closed at the next call of wakeAll. The caller must
// hold s.mu.
func (s *groupState) recordsChanged() <-chan struct{} {
	if s.changeSignal == nil {
		s.changeSignal = make(chan struct{})
	}
	return s.changeSignal
}

// tick wakes the waits if this process had stalled, so that those that have timed out return
// before another stall. It also wakes them if statuses have arrived, which may show a deadlock.
func (s *groupState) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stallDetector.tick(now) || s.statusesArrived {
		s.statusesArrived = false
		s.wakeAll()
	}
}

// ownStatus returns this rank's status. Of several waits for collectives, it describes the one
// with the highest ticket (see publishLatest in package shm). The caller must hold s.mu.
func (s *groupState) ownStatus() status {
	current := status{submitted: min(s.submitted.Load(), s.maxTicket)}
	for _, w := range s.waits {
		switch {
		case w.collective > current.inCollective:
			current.inCollective, current.operation = w.collective, w.operation
			current.since = w.begin
		case w.isAgreement && current.inCollective == 0:
			current.inExchange, current.since = w.step, w.begin
		case w.isAgreement:
			current.inExchange = w.step
		}
	}
	return current
}

// removeWait removes w from s.waits. The caller must hold s.mu.
func (s *groupState) removeWait(w *waitState) {
	s.waits = slices.DeleteFunc(s.waits, func(o *waitState) bool { return o == w })
}

// hasUnacknowledgedFault reports whether a rank that still takes part in the group may not know
// that this rank has failed.
func hasUnacknowledgedFault(s *groupState) bool {
	for rank := range s.records {
		r := &s.records[rank]
		if rank != s.ownRank && !r.hasAckedFault && r.failed == control.NotFailed &&
			!r.hasLeft && !r.isLost {
			return true
		}
	}
	return false
}

// ranksYetToReport returns the group ranks whose next report has not arrived. It excludes ranks
// that can send no more reports, and marks them as absent.
func (s *groupState) ranksYetToReport() []int {
	var ranks []int
	for r := range s.records {
		record := &s.records[r]
		if r == s.ownRank || record.isAbsent || record.reportsRead < len(record.reports) {
			continue
		}
		if record.isLost || record.hasLeft || !record.hasRoomFor(0) {
			record.isAbsent = true
			continue
		}
		ranks = append(ranks, r)
	}
	return ranks
}

// decideTimeout bounds the time in which the store must answer Decide.
const decideTimeout = 3 * time.Second

// Decide proposes a cause of the group's failure, unless proposal is nil, and returns the first
// proposal of any rank. It returns proposal if the store does not answer or proposal is too large.
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
