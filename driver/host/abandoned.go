package host

import "symmem/internal/ranked"

// abandonedWork keeps the device's memory mapped while closed streams still run work.
type abandonedWork struct {
	mu            ranked.Mutex[abandonedMu]
	streamCount   int            // closed streams with running work; guarded by mu
	delayedUnmaps []func() error // to be called, in order, when streamCount drops to 0; guarded by mu
}

// unmapWhenIdle calls a function that unmaps memory, after all abandoned work has completed.
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
	busy := s.busy
	s.mu.Unlock()
	if busy == nil {
		return
	}
	a.mu.Lock()
	a.streamCount++
	a.mu.Unlock()
	go func() {
		<-busy.ended
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
		_ = unmap() // the caller has already returned, so there is nowhere to report the error
	}
	a.delayedUnmaps = nil
}
