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

type groupState struct {
	cfg     Config
	ownRank int // group rank

	submitted          atomic.Uint64
	peerFailedOrClosed atomic.Bool
	failSignal         chan struct{} // closed when cause is set

	mu              sync.Mutex // guards the fields below
	cause           error      // fault of this rank
	closed          bool
	records         []rankRecord  // by group rank
	waits           []*waitState  // shown in this rank's status
	maxTicket       uint64        // highest ticket for other ranks
	changeSignal    chan struct{} // closed when records change, or nil
	stallDetector   stallDetector
	lastWarning     time.Time
	statusesArrived bool // since the last tick
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

// recordFault records the first fault and returns true for it. The caller must hold s.mu.
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

// markLost ignores ranks that have left.
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

// The caller must hold s.mu.
func (s *groupState) wakeAll() {
	if s.changeSignal != nil {
		close(s.changeSignal)
		s.changeSignal = nil
	}
}

// wakeWaitsFor wakes waits that a message may have ended. It does not examine all ranks for every
// message: a post wakes a wait only if it is the last missing one, and a status that answers no
// request wakes waits at the next tick. The caller must hold s.mu.
func (s *groupState) wakeWaitsFor(rank int, m message) {
	switch m.kind {
	case kindPost:
		if s.records[rank].stepsOn(m.track).received != m.step {
			return // the step has failed
		}
		for _, w := range s.waits {
			if w.step != m.step || w.track != m.track {
				continue
			}
			if w.missingPosts--; w.missingPosts <= 0 {
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

// recordsChanged returns a channel that is closed at the next change. The caller must hold s.mu.
func (s *groupState) recordsChanged() <-chan struct{} {
	if s.changeSignal == nil {
		s.changeSignal = make(chan struct{})
	}
	return s.changeSignal
}

// tick wakes the waits after a stall, so that those that have timed out return before another one.
// It also wakes them after statuses, which may show a deadlock.
func (s *groupState) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stallDetector.tick(now) || s.statusesArrived {
		s.statusesArrived = false
		s.wakeAll()
	}
}

// ownStatus shows the highest ticket of this rank's waits (see publishLatest in package shm). The
// caller must hold s.mu.
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

// The caller must hold s.mu.
func (s *groupState) removeWait(w *waitState) {
	s.waits = slices.DeleteFunc(s.waits, func(o *waitState) bool { return o == w })
}

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

// ranksYetToReport marks ranks that can send no more reports as absent.
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

const decideTimeout = 3 * time.Second

// Decide proposes a cause of the group's failure, unless proposal is nil, and returns the first
// proposal of any rank or, without the store, proposal.
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
