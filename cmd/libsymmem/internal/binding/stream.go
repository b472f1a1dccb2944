package binding

import (
	"context"
	"fmt"

	"symmem"
)

// streams are the calls about streams of the caller, and about events on them.
type streams struct{ l *Library }

// Synchronize waits until a stream is idle, and returns the first error of its work.
func (s *streams) Synchronize(handle uintptr) error {
	r, err := s.l.current()
	if err != nil {
		return err
	}
	if r.rt.Interop().Captured(handle) {
		return fmt.Errorf("synchronizing stream %#x: %w", handle, symmem.ErrCapturing)
	}
	on, err := r.stream(handle)
	if err != nil {
		return err
	}
	return s.l.resumed("synchronizing", on.Synchronize)
}

// Idle notes that the caller has waited for the device, or not, for the Trim and Close that
// follow.
func (s *streams) Idle(yes bool) error {
	r, err := s.l.current()
	if err == nil {
		r.rt.Interop().SetIdle(yes)
	}
	return err
}

// Forget drops a stream that its owner is about to destroy.
func (s *streams) Forget(handle uintptr) error {
	r, err := s.l.current()
	if err != nil {
		return err
	}
	r.mu.Lock()
	dropped := r.streams[handle]
	delete(r.streams, handle)
	r.mu.Unlock()
	// This may wait for work, which may need what ranks do on other streams.
	if dropped == nil {
		return nil
	}
	return s.l.apart("forgetting a stream", func(context.Context) error {
		r.rt.Interop().ForgetStream(dropped)
		return nil
	})
}

// Record makes an event of the point after everything queued on a foreign stream so far, and
// returns its handle.
func (s *streams) Record(stream uintptr) (uint64, error) {
	r, err := s.l.current()
	if err != nil {
		return 0, err
	}
	if r.rt.Interop().Captured(stream) {
		return 0, fmt.Errorf("recording an event on stream %#x: %w", stream, symmem.ErrCapturing)
	}
	on, err := r.stream(stream)
	if err != nil {
		return 0, err
	}
	e, err := r.rt.NewEvent()
	if err != nil {
		return 0, err
	}
	if err := on.Record(e); err != nil {
		return 0, fmt.Errorf("recording an event on stream %#x: %w", stream, err)
	}
	handle := s.l.handles.Add(1)
	r.mu.Lock()
	r.events[handle] = e
	r.mu.Unlock()
	return handle, nil
}

// event finds an event by its handle.
func (s *streams) event(handle uint64) (*rank, *symmem.Event, error) {
	r, err := s.l.current()
	if err != nil {
		return nil, nil, err
	}
	r.mu.RLock()
	e := r.events[handle]
	r.mu.RUnlock()
	if e == nil {
		return nil, nil, s.l.unknown("event", handle)
	}
	return r, e, nil
}

// Reached reports whether the point of an event has been reached. An event that is closed has
// nothing before it that anybody waits for.
func (s *streams) Reached(handle uint64) bool {
	_, e, err := s.l.event(handle)
	return err != nil || e.Done()
}

// Await waits until the point of an event has been reached.
func (s *streams) Await(handle uint64) error {
	_, e, err := s.l.event(handle)
	if err != nil {
		return err
	}
	return s.l.resumed("waiting for an event", e.Synchronize)
}

// CloseEvent drops an event. Streams that wait for it go on to.
func (s *streams) CloseEvent(handle uint64) error {
	r, _, err := s.l.event(handle)
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.events, handle)
	r.mu.Unlock()
	return nil
}

// StreamWait makes later work of a foreign stream wait for the point of an event.
func (s *streams) StreamWait(stream uintptr, handle uint64) error {
	r, e, err := s.l.event(handle)
	if err != nil {
		return err
	}
	on, err := r.stream(stream)
	if err != nil {
		return err
	}
	return on.Wait(e)
}
