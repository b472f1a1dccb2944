package host

import "symmem/internal/ranked"

// abandonedWork keeps the device's memory mapped while streams that have already been closed
// still run work.
type abandonedWork struct {
	mu      ranked.Mutex[abandonedMu]
	streams int            // closed streams with running work; guarded by mu
	unmaps  []func() error // to be called, in order, when streams drops to 0; guarded by mu
}

// unmap calls a function that unmaps memory or addresses. If abandoned work is running, the call is
// postponed until the work has completed.
func (l *abandonedWork) unmap(unmap func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == 0 {
		return unmap()
	}
	l.unmaps = append(l.unmaps, unmap)
	return nil
}

func (l *abandonedWork) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams > 0
}

func (l *abandonedWork) keepFor(s *stream) {
	s.mu.Lock()
	idle := s.busy
	s.mu.Unlock()
	if idle == nil {
		return
	}
	l.mu.Lock()
	l.streams++
	l.mu.Unlock()
	go func() {
		<-idle.over
		l.workEnded()
	}()
}

// workEnded is called when an abandoned stream becomes idle. If it was the last one, workEnded
// makes the postponed calls.
func (l *abandonedWork) workEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams--; l.streams > 0 {
		return
	}
	for _, unmap := range l.unmaps {
		_ = unmap() // the caller has already returned, so there is nowhere to report the error
	}
	l.unmaps = nil
}
