package torch

import (
	"context"
	"fmt"

	"symmem"
)

// stream returns the Stream of a foreign handle, and adopts it at its first use.
func (r *rank) stream(handle uintptr) (*symmem.Stream, error) {
	r.mu.RLock()
	s := r.streams[handle]
	r.mu.RUnlock()
	if s != nil {
		return s, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.streams[handle]; s != nil {
		return s, nil
	}
	s, err := r.rt.Interop().AdoptStream(handle)
	if err != nil {
		return nil, err
	}
	r.streams[handle] = s
	return s, nil
}

// Synchronize waits until a stream is idle, and returns the first error of its work.
func (l *Library) Synchronize(handle uintptr) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	if r.rt.Interop().Captured(handle) {
		return fmt.Errorf("synchronizing stream %#x: %w", handle, symmem.ErrCapturing)
	}
	s, err := r.stream(handle)
	if err != nil {
		return err
	}
	return l.resumed("synchronizing", s.Synchronize)
}

// Settled notes that the caller has waited for the device, or not, for the Trim and Close that
// follow.
func (l *Library) Settled(yes bool) error {
	r, err := l.current()
	if err == nil {
		r.rt.Interop().SetSettled(yes)
	}
	return err
}

// Forget drops a stream that its owner is about to destroy.
func (l *Library) Forget(handle uintptr) error {
	r, err := l.current()
	if err != nil {
		return err
	}
	r.mu.Lock()
	s := r.streams[handle]
	delete(r.streams, handle)
	r.mu.Unlock()
	// This may wait for work, which may need what ranks do on other streams.
	if s == nil {
		return nil
	}
	return l.apart("forgetting a stream", func(context.Context) error {
		r.rt.Interop().ForgetStream(s)
		return nil
	})
}
