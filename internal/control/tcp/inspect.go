package tcp

import (
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

var _ driver.Inspector = (*Plane)(nil)

// Inspect describes this rank's waits and, from their latest messages, other ranks' activity.
func (s *groupState) Inspect() driver.Inspection {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := driver.Inspection{
		Activity: control.Activity(s.cfg.Group, s.rankStates(&waitState{})),
	}
	for _, w := range s.waits {
		// Do not copy sincePeerFailure, which the waiting goroutine writes without holding mu.
		observed := &waitState{
			callText: w.callText, track: w.track, step: w.step, collective: w.collective,
			begin: w.begin,
		}
		status := s.waitStatus(observed, time.Now())
		if late := status.Warning(s.rankStates(observed)); late != nil {
			all.Waits = append(all.Waits, *late)
		}
	}

	return all
}
