package symmem

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream returns a Stream for a stream that another library has created. The handle is a
// CUstream, which is also a cudaStream_t. The host backend accepts any number. The Stream is
// numbered like one that NewStream creates. A Runtime can create and adopt at most 65,535 streams,
// so adopt each stream once and keep the result.
//
// The owner may capture the stream. Collectives then become part of the owner's capture.
// Collectives on unregistered memory are captured on a path without windows. Once a collective has
// been captured, nothing can be registered on this rank until the capture ends. The segments, group
// and Runtime that the captured collectives use stay in memory until the owner has destroyed the
// graph and everything instantiated from it. If the program trims or closes them earlier, later
// replays complete without producing a result. As in PyTorch, a freed buffer may be reused even if
// a graph uses it, so the owner must keep the buffers that its graphs use.
//
// The stream must exist until ForgetStream returns or the Runtime is closed. Pool.Trim and
// Runtime.Close wait for the work that the owner has queued on the stream, unless SetIdle(true) is
// in effect. A Pool.Alloc for another stream queries this stream before it takes memory that was
// freed on this stream. Calls that take the stream as an argument query it as well. While a capture
// of the stream contains a collective, every registration and collective queries the stream.
//
// symmem's background work never invalidates a capture. However, do not use the stream while
// another thread is inside the CUDA function that begins or ends a capture of it, because the CUDA
// driver (580.159.04) may then crash. This also applies to calls that wait for the stream:
// Synchronize, ForgetStream, Pool.Trim, Pool.Close, Alloc when memory is short, and Free of a
// Buffer that belongs to another stream but was used on this one.
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

// SetIdle declares, if idle is true, that all work queued on adopted streams has finished, because
// their owners have waited for it. Until SetIdle(false) is called, Pool.Trim and Runtime.Close do
// not query adopted streams, memory freed on an adopted stream is not given to other streams, and
// owners may destroy their streams without calling ForgetStream.
func (i Interop) SetIdle(idle bool) {
	rt := i.rt
	rt.adoptedIdle.Store(idle)
	if idle {
		rt.captures.forget() // all captures have ended
	}
}

// IsCapturing reports whether a stream of another library is being captured. It also returns true
// if that cannot be determined.
func (i Interop) IsCapturing(handle uintptr) bool {
	adopter, ok := i.rt.device.(driver.Adopter)
	if !ok {
		return false
	}
	queue, err := adopter.AdoptStream(handle)
	if err != nil {
		return true
	}
	capturing, err := queue.IsCapturing()
	return capturing || err != nil
}

// ForgetStream ends the use of an adopted stream and must be called before the owner destroys the
// stream. It waits for unfinished work on the stream, but at most twice Options.Timeout. Later
// calls on the stream return ErrClosed. The Runtime and each pool keep a few hundred bytes for a
// forgotten stream, because its number is not reused. Memory freed on the stream becomes available
// to other streams when memory is short, and Pool.Trim unmaps it.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // a group that fails returns the error in its next call
	}
}

func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.note(s, false)
	return end(s.adopted)
}

// isCapturing reports whether the owner of an adopted stream is capturing it. It also returns true
// if that cannot be determined.
func (s *Stream) isCapturing() bool {
	if s.adopted == nil {
		return false
	}
	capturing, err := s.adopted.IsCapturing()
	return capturing || err != nil
}
