package binding

import (
	"context"
	"fmt"

	"symmem"
)

// streams implements the functions of symmem.h for foreign streams and for events on them.
type streams struct{ s *session }

// Synchronize waits until a stream is idle, and returns the first error of its work.
func (st *streams) Synchronize(handle uintptr) error {
	r, err := st.s.current()
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
	return st.s.runResumable("synchronizing", s.Synchronize)
}

// Idle records whether the caller has waited until the device is idle. If so, the next Trim and
// Close need not query streams.
func (st *streams) Idle(yes bool) error {
	r, err := st.s.current()
	if err == nil {
		r.rt.Interop().SetIdle(yes)
	}
	return err
}

// Forget removes a stream that its owner is about to destroy.
func (st *streams) Forget(handle uintptr) error {
	r, err := st.s.current()
	if err != nil {
		return err
	}
	forgotten, ok := r.streams.remove(handle)
	if !ok {
		return nil
	}
	// ForgetStream may wait for work that depends on other streams, so no lock is held.
	return st.s.runInterruptible("forgetting a stream", func(context.Context) error {
		r.rt.Interop().ForgetStream(forgotten)
		return nil
	})
}

// Record records an event after the work queued on a foreign stream so far, and returns the event's
// handle.
func (st *streams) Record(stream uintptr) (uint64, error) {
	r, err := st.s.current()
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
	handle := st.s.handles.Add(1)
	r.events.add(handle, e)
	return handle, nil
}

// event returns the open rank and one of its events.
func (st *streams) event(handle uint64) (*rank, *symmem.Event, error) {
	r, err := st.s.current()
	if err != nil {
		return nil, nil, err
	}
	e, ok := r.events.find(handle)
	if !ok {
		return nil, nil, st.s.errUnknown("event", handle)
	}
	return r, e, nil
}

// Reached reports whether the work before an event is done. It returns true for closed events.
func (st *streams) Reached(handle uint64) bool {
	_, e, err := st.event(handle)
	return err != nil || e.Done()
}

// Await waits until the work before an event is done.
func (st *streams) Await(handle uint64) error {
	_, e, err := st.event(handle)
	if err != nil {
		return err
	}
	return st.s.runResumable("waiting for an event", e.Synchronize)
}

// CloseEvent removes an event. Streams that wait for it keep waiting.
func (st *streams) CloseEvent(handle uint64) error {
	r, _, err := st.event(handle)
	if err != nil {
		return err
	}
	r.events.remove(handle)
	return nil
}

// StreamWait makes later work of a foreign stream wait for an event.
func (st *streams) StreamWait(stream uintptr, handle uint64) error {
	r, e, err := st.event(handle)
	if err != nil {
		return err
	}
	s, err := r.stream(stream)
	if err != nil {
		return err
	}
	return s.Wait(e)
}
