package host

import "symmem/internal/ranked"

// abandonedWork keeps the device's memory mapped while closed streams still run work.
type abandonedWork struct {
	mu      ranked.Mutex[abandonedMu]
	streams int            // closed streams with running work; guarded by mu
	unmaps  []func() error // to be called, in order, when streams drops to 0; guarded by mu
}

// unmap calls a function that unmaps memory, after all abandoned work has completed.
func (a *abandonedWork) unmap(unmap func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams == 0 {
		return unmap()
	}
	a.unmaps = append(a.unmaps, unmap)
	return nil
}

func (a *abandonedWork) any() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams > 0
}

func (a *abandonedWork) keepFor(s *stream) {
	s.mu.Lock()
	busy := s.busy
	s.mu.Unlock()
	if busy == nil {
		return
	}
	a.mu.Lock()
	a.streams++
	a.mu.Unlock()
	go func() {
		<-busy.ended
		a.workEnded()
	}()
}

func (a *abandonedWork) workEnded() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams--; a.streams > 0 {
		return
	}
	for _, unmap := range a.unmaps {
		_ = unmap() // the caller has already returned, so there is nowhere to report the error
	}
	a.unmaps = nil
}
