package torch

import (
	"fmt"

	"symmem"
)

// Record makes an event of the point after everything queued on a foreign stream so far, and
// returns its handle.
func (l *Library) Record(stream uintptr) (uint64, error) {
	r, err := l.current()
	if err != nil {
		return 0, err
	}
	if r.rt.Interop().Captured(stream) {
		return 0, fmt.Errorf("recording an event on stream %#x: %w", stream, symmem.ErrCapturing)
	}
	s, err := r.stream(stream)
	if err != nil {
		return 0, err
	}
	e, err := r.rt.NewEvent()
	if err != nil {
		return 0, err
	}
	if err := s.Record(e); err != nil {
		return 0, fmt.Errorf("recording an event on stream %#x: %w", stream, err)
	}
	handle := l.handles.Add(1)
	r.mu.Lock()
	r.events[handle] = e
	r.mu.Unlock()
	return handle, nil
}

// event finds an event by its handle.
func (l *Library) event(handle uint64) (*rank, *symmem.Event, error) {
	r, err := l.current()
	if err != nil {
		return nil, nil, err
	}
	r.mu.RLock()
	e := r.events[handle]
	r.mu.RUnlock()
	switch {
	case e != nil:
		return r, e, nil
	case handle == 0 || handle > l.handles.Load():
		return nil, nil, fmt.Errorf("event %d: there never was one: %w", handle, symmem.ErrInvalid)
	}
	return nil, nil, fmt.Errorf("event %d: %w", handle, symmem.ErrClosed)
}

// Reached reports whether the point of an event has been reached. An event that is closed has
// nothing before it that anybody waits for.
func (l *Library) Reached(handle uint64) bool {
	_, e, err := l.event(handle)
	return err != nil || e.Done()
}

// Await waits until the point of an event has been reached.
func (l *Library) Await(handle uint64) error {
	_, e, err := l.event(handle)
	if err != nil {
		return err
	}
	return l.resumed("waiting for an event", e.Synchronize)
}

// CloseEvent drops an event. Streams that wait for it go on to.
func (l *Library) CloseEvent(handle uint64) error {
	r, _, err := l.event(handle)
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.events, handle)
	r.mu.Unlock()
	return nil
}

// StreamWait makes later work of a foreign stream wait for the point of an event.
func (l *Library) StreamWait(stream uintptr, handle uint64) error {
	r, e, err := l.event(handle)
	if err != nil {
		return err
	}
	s, err := r.stream(stream)
	if err != nil {
		return err
	}
	return s.Wait(e)
}
