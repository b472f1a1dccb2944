package host

import "symmem/internal/ranked"

// leftWork counts the streams that were closed while work was still running. The memory of the
// device stays mapped until that work has ended.
type leftWork struct {
	mu      ranked.Mutex[leftMu]
	streams int            // guarded by mu
	unmaps  []func() error // calls for the end of the work, in order; guarded by mu
}

// unmap makes a call that unmaps memory or addresses, now or after the work has ended.
func (l *leftWork) unmap(unmap func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == 0 {
		return unmap()
	}
	l.unmaps = append(l.unmaps, unmap)
	return nil
}

// keepFor keeps memory mapped until a stream is idle.
func (l *leftWork) keepFor(s *stream) {
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
		l.ended()
	}()
}

// ended makes the pending calls after the last stream has become idle.
func (l *leftWork) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams--; l.streams > 0 {
		return
	}
	for _, unmap := range l.unmaps {
		_ = unmap() // the caller has returned
	}
	l.unmaps = nil
}
