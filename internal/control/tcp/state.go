package tcp

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// groupState holds what this rank knows about its group: the records of all ranks, this rank's
// fault and its waits. It sends nothing.
type groupState struct {
	cfg Config
	me  int // group rank

	submitted atomic.Uint64
	ended     chan struct{} // closed when cause is known

	mu      sync.Mutex
	cause   error         // fault of this rank; guarded by mu
	closed  bool          // guarded by mu
	records []rankRecord  // by group rank; guarded by mu
	waits   []*waiting    // waits in this rank's status; guarded by mu
	limit   uint64        // highest ticket sent to others; guarded by mu
	changed chan struct{} // closed when records change, or nil; guarded by mu
	stalls  stallDetector // of this process; guarded by mu
	warned  time.Time     // time of the last warning; guarded by mu
}

// Cause returns the first fault.
func (s *groupState) Cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// end leaves the open state, and returns false if the plane has left it before. s.mu is held.
func (s *groupState) end(err error) bool {
	if s.cause != nil {
		return false
	}
	s.cause = err
	close(s.ended)
	s.wakeAll()
	return true
}

// usable returns the reason why a lane can no longer be used, or nil. s.mu is held.
func (s *groupState) usable(lane driver.Lane) error {
	if s.closed {
		return fmt.Errorf("group %s: %w", s.cfg.Group.Name(), driver.ErrClosed)
	}
	if lane == driver.LaneFault {
		return nil
	}
	return s.cause
}

// wakeAll wakes all waits of this rank, which check their condition again. s.mu is held.
func (s *groupState) wakeAll() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// change returns a channel that is closed when the records change. s.mu is held.
func (s *groupState) change() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// tick wakes the waits once the messages of others have been read after a stall. Waits that are due
// end right then, since this process may be stopped again.
func (s *groupState) tick(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stalls.tick(now) {
		s.wakeAll()
	}
}

// status returns the current activity of this rank. Of several awaited collectives it contains the
// last, for the reason given at publishLatest of package shm. s.mu is held.
func (s *groupState) status() status {
	b := status{submitted: min(s.submitted.Load(), s.limit)}
	for _, w := range s.waits {
		switch {
		case w.collective > b.inCollective:
			b.inCollective, b.operation, b.since = w.collective, w.operation, w.begin
		case w.exchange && b.inCollective == 0:
			b.inExchange, b.since = w.step, w.begin
		case w.exchange:
			b.inExchange = w.step
		}
	}
	return b
}

// publish adds a wait to this rank's status, and unpublish removes it. s.mu is held.
func (s *groupState) publish(w *waiting) { s.waits = append(s.waits, w) }

func (s *groupState) unpublish(w *waiting) {
	s.waits = slices.DeleteFunc(s.waits, func(o *waiting) bool { return o == w })
}

// unacknowledged reports whether a rank that is still in the group may not know of this rank's
// fault.
func (s *groupState) unacknowledged() bool {
	for rank := range s.records {
		r := &s.records[rank]
		if rank != s.me && !r.failAcked && r.failed == control.NotFailed && !r.left && !r.lost {
			return true
		}
	}
	return false
}

// unreported lists the ranks whose next report has not arrived. It marks ranks that can no longer
// send one as absent.
func (s *groupState) unreported() []int {
	var ranks []int
	for r := range s.records {
		record := &s.records[r]
		if r == s.me || record.absent || record.readReports < len(record.reports) {
			continue
		}
		if record.lost || record.left || !record.hasRoom(0) {
			record.absent = true
			continue
		}
		ranks = append(ranks, r)
	}
	return ranks
}
