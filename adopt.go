package symmem

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream returns a Stream for a stream that another library has created. The handle is a
// CUstream or cudaStream_t; the host backend accepts any number. A Runtime can create and adopt at
// most 65,535 streams, so adopt each stream once.
//
// The owner may capture the stream. The capture then includes collectives, which take a path
// without windows if their memory is not registered. Once a collective has been captured, this rank
// cannot register memory until the capture ends. Keep the buffers that the graph uses until the
// graph and everything instantiated from it is destroyed, because freed memory is reused. If the
// program trims or closes pools, groups or the Runtime earlier, later replays complete without
// producing a result.
//
// The stream must exist until ForgetStream returns or the Runtime is closed. Pool.Trim and
// Runtime.Close wait for its work, unless SetIdle(true) is in effect. Allocations, registrations
// and collectives may query it.
//
// symmem's background work never invalidates a capture. However, while another thread is inside the
// CUDA function that begins or ends a capture of the stream, do not use the stream or wait for it:
// the CUDA driver (580.159.04) may then crash. Besides Synchronize, the functions ForgetStream,
// Pool.Trim and Pool.Close may wait for it. So may Alloc when memory is short, and Free of another
// stream's Buffer that was used on this stream.
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

// SetIdle declares, if idle is true, that all work queued on adopted streams has finished. Until
// SetIdle(false), Pool.Trim and Runtime.Close do not query adopted streams, and memory freed on an
// adopted stream is not given to other streams. Owners may then destroy their streams without
// ForgetStream.
func (i Interop) SetIdle(idle bool) {
	rt := i.rt
	rt.adoptedIdle.Store(idle)
	if idle {
		rt.captures.forget() // all captures have ended
	}
}

// IsCapturing reports whether a stream of another library is being captured, or true if that is
// unknown.
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
// stream. It waits for the stream's work, but at most twice Options.Timeout. Later calls on the
// stream return ErrClosed. Its number is not reused.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // a group that fails returns the error in its next call
	}
}

func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.note(s, false)
	return end(s.adopted)
}

// isCapturing is like Interop.IsCapturing, but returns false for a stream that symmem created.
func (s *Stream) isCapturing() bool {
	if s.adopted == nil {
		return false
	}
	capturing, err := s.adopted.IsCapturing()
	return capturing || err != nil
}
