package host

import "symmem/internal/ranked"

type abandonedWork struct {
	mu            ranked.Mutex[abandonedMu] // guards all fields
	streamCount   int                       // closed streams with running work
	delayedUnmaps []func() error            // called in order when streamCount drops to 0
}

// unmapWhenIdle calls unmap when no abandoned work is running.
func (a *abandonedWork) unmapWhenIdle(unmap func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streamCount == 0 {
		return unmap()
	}

	a.delayedUnmaps = append(a.delayedUnmaps, unmap)
	return nil
}

func (a *abandonedWork) isRunning() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streamCount > 0
}

func (a *abandonedWork) waitFor(s *stream) {
	s.mu.Lock()
	period := s.busyPeriod
	s.mu.Unlock()
	if period == nil {
		return
	}

	a.mu.Lock()
	a.streamCount++
	a.mu.Unlock()
	go func() {
		<-period.ended
		a.removeStream()
	}()
}

func (a *abandonedWork) removeStream() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streamCount--; a.streamCount > 0 {
		return
	}

	for _, unmap := range a.delayedUnmaps {
		_ = unmap() // the caller has already returned
	}

	a.delayedUnmaps = nil
}
