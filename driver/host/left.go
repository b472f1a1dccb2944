package host

import "symmem/internal/ranked"

// leftWork is work that has not ended in time, with which streams were closed. It may go on, so the
// memory of the device stays until it has ended.
type leftWork struct {
	mu      ranked.Mutex[leftMu]
	streams int            // guarded by mu
	unmaps  []func() error // called then, in order; guarded by mu
}

// unmap gives memory or addresses back, now or once the work has ended.
func (l *leftWork) unmap(unmap func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams == 0 {
		return unmap()
	}
	l.unmaps = append(l.unmaps, unmap)
	return nil
}

// keepFor has memory stay until a stream is idle.
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

func (l *leftWork) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams--; l.streams > 0 {
		return
	}
	for _, unmap := range l.unmaps {
		_ = unmap() // no caller is left to return it to
	}
	l.unmaps = nil
}
