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
// cannot register memory until the capture ends. Freed memory is reused, so free the buffers that
// the graph uses only after the graph and all its instances have been destroyed. If the program
// trims or closes pools, groups or the Runtime earlier, later replays complete without producing a
// result.
//
// The stream must exist until ForgetStream returns or the Runtime is closed. Pool.Trim and
// Runtime.Close wait for the stream's work, unless SetIdle(true) is in effect. Allocations,
// registrations and collectives may query the stream.
//
// symmem's background work never invalidates a capture. However, while another thread is inside the
// CUDA function that begins or ends a capture of the stream, do not use the stream or wait for it:
// the CUDA driver (580.159.04) may then crash. Synchronize, ForgetStream, Pool.Trim and Pool.Close
// may wait for the stream. So may Alloc when memory is short, and Free of another stream's Buffer
// that was used on this stream.
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

// SetIdle declares, if idle is true, that all work queued on adopted streams has finished. The
// owners are then allowed to destroy their streams without ForgetStream. Until SetIdle(false),
// Pool.Trim and Runtime.Close do not query adopted streams, and other streams do not get memory
// that was freed on an adopted stream.
func (i Interop) SetIdle(idle bool) {
	rt := i.rt
	rt.adoptedIdle.Store(idle)
	if idle {
		rt.captures.forget() // all captures have ended
	}
}

// IsCapturing reports whether a stream of another library is being captured. If the answer is
// unknown, it returns true.
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

// ForgetStream ends the use of an adopted stream. It must be called before the owner destroys the
// stream. It waits for the stream's work, but at most for twice Options.Timeout. Later calls on s
// return ErrClosed.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // the next call of a failed group returns the error
	}
}

func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.updateAdopted(s, false)
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
