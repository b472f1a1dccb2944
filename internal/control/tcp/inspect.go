package tcp

import (
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

var _ driver.Inspector = (*Plane)(nil)

// Waits describes the waits of this rank, oldest first.
func (s *groupState) Waits() []driver.LateWarning {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []driver.LateWarning
	for _, w := range s.waits {
		// The waiting goroutine writes failedFor without the lock.
		observed := &waitState{
			doing: w.doing, track: w.track, step: w.step, collective: w.collective, begin: w.begin,
		}
		q := s.waitStatus(observed, time.Now())
		if late := q.Describe(s.rankStates(observed)); late != nil {
			all = append(all, *late)
		}
	}
	return all
}

// Activity describes the activities of the other ranks, by world rank, as far as their messages
// have arrived.
func (s *groupState) Activity() map[int]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return control.Activity(s.cfg.Group, s.rankStates(&waitState{}))
}
