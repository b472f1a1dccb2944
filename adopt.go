package symmem

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream returns a Stream for a stream that another library has created. The handle is a
// CUstream, which is also a cudaStream_t; on the host backend it is any number. The Stream is
// numbered like one that NewStream creates. A Runtime creates and adopts at most 65,535 streams, so
// adopt each stream once and keep the result.
//
// The owner may capture the stream. Collectives then become part of the owner's capture; on
// unregistered memory, they take a path that needs no windows. Once the capture contains a call,
// nothing can be registered on this rank until the capture ends. The segments, group and Runtime
// that the calls use stay in memory until the owner has destroyed the graph and everything
// instantiated from it. If the program trims or closes them earlier, a replay ends without a
// result. As in PyTorch, a freed buffer may be reused even if a graph uses it, so the owner must
// keep the buffers that its graphs use.
//
// The stream must exist until ForgetStream returns, or until the Runtime is closed. Pool.Trim and
// Runtime.Close wait for the work that the owner has queued on the stream. Pool.Alloc for another
// stream queries this stream if it needs this stream's free memory. SetIdle prevents these queries.
// In all other cases, symmem queries the stream only in calls that name the stream, and when a
// registration or a new call could run during a capture that contains calls.
//
// symmem's background work never invalidates a capture. Do not use the stream while another thread
// is inside the CUDA function that begins or ends a capture of it: the CUDA driver (580.159.04) may
// then crash. This also applies to calls that wait for the stream: Synchronize, ForgetStream,
// Pool.Trim, Pool.Close, Free of another stream's Buffer that was used on it, and Alloc if memory
// is short.
func (i Interop) AdoptStream(handle uintptr) (*Stream, error) {
	rt := i.rt
	adopter, ok := rt.device.(driver.Adopter)
	if !ok {
		return nil, fmt.Errorf("adopting a stream: %w", ErrUnsupported)
	}
	return rt.addStream(func() (driver.Stream, driver.AdoptedStream, error) {
		queue, err := adopter.AdoptStream(handle)
		return queue, queue, err
	})
}

// SetIdle declares whether the owners of adopted streams have waited for all work that they queued
// on these streams. If yes is true, Pool.Trim and Runtime.Close do not query adopted streams, and
// other streams get no free memory of adopted streams. Owners may then destroy streams without
// calling ForgetStream.
func (i Interop) SetIdle(yes bool) {
	rt := i.rt
	rt.ownersWait.Store(yes)
	if yes {
		rt.captures.forget() // all captures have ended
	}
}

// Captured reports whether a stream of another library is being captured. It returns true if the
// state is unknown.
func (i Interop) Captured(handle uintptr) bool {
	adopter, ok := i.rt.device.(driver.Adopter)
	if !ok {
		return false
	}
	queue, err := adopter.AdoptStream(handle)
	if err != nil {
		return true
	}
	is, err := queue.Captured()
	return is || err != nil
}

// ForgetStream ends the use of an adopted stream. Call it before the owner destroys the stream. It
// waits for unfinished work on the stream, up to twice Options.Timeout. Later calls on the stream
// return ErrClosed. The stream's numbers in the Runtime and in pools are not reused, because ranks
// may forget streams at different times. Each number costs a few hundred bytes. Other streams can
// get the stream's free memory when memory is short, and Pool.Trim unmaps it.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // the group of the failed work returns the fault
	}
}

// forget implements ForgetStream and returns the first error of the stream's work.
func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.note(s, false)
	return end(s.adopted)
}

// captured reports whether the owner of an adopted stream captures it. It returns true if the state
// is unknown.
func (s *Stream) captured() bool {
	if s.adopted == nil {
		return false
	}
	is, err := s.adopted.Captured()
	return is || err != nil
}
