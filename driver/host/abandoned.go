package host

import "symmem/internal/ranked"

// abandonedWork counts the streams that were closed while their work was still running. The
// device's memory stays mapped until that work has ended.
type abandonedWork struct {
	mu      ranked.Mutex[abandonedMu]
	streams int            // guarded by mu
	unmaps  []func() error // to be called, in order, when the work has ended; guarded by mu
}

// unmap calls a function that unmaps memory or addresses, at once or when the work has ended.
func (l *abandonedWork) unmap(unmap func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == 0 {
		return unmap()
	}
	l.unmaps = append(l.unmaps, unmap)
	return nil
}

// any reports whether such work is running.
func (l *abandonedWork) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams > 0
}

// keepFor keeps the device's memory mapped until a closed stream is idle.
func (l *abandonedWork) keepFor(s *stream) {
	s.mu.Lock()
	idle := s.idle
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

// workEnded counts down when a stream becomes idle, and makes the pending calls after the last one.
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
