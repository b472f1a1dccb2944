package symmem

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream returns a Stream for another library's CUstream or cudaStream_t (any number for the
// host backend). A Runtime can create and adopt at most 65,535 streams. The stream must exist until
// ForgetStream returns or the Runtime is closed, because symmem queries it; but see SetIdle.
//
// The owner may capture the stream. Once a graph contains a collective, this rank cannot register
// memory until the capture ends. Destroy the graph before you free buffers that it uses, because
// their memory is reused, or trim or close pools and groups, because later replays then complete
// without a result. The CUDA driver (580.159.04) may crash if a thread waits for the stream, as
// Synchronize, Pool.Trim, Pool.Close, Alloc and Free may, while another begins or ends a capture.
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

// SetIdle declares, if idle is true, that all work on adopted streams has finished. Until
// SetIdle(false), symmem does not query them, so their owners may destroy them without
// ForgetStream. In the meantime, other streams do not get memory that was freed on them.
func (i Interop) SetIdle(idle bool) {
	rt := i.rt
	rt.adoptedIdle.Store(idle)
	if idle {
		rt.captures.clearAdopted() // all captures have ended
	}
}

// IsCapturing reports whether another library's stream is being captured, or true if unknown.
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

// ForgetStream must be called before the owner destroys the stream. It waits for the stream's work,
// at most for twice Options.Timeout. Later calls on s return ErrClosed.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // the next call of a failed group returns the error
	}
}

func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.updateAdopted(s, s.rt.captures.removeAdopted)
	return end(s.adopted)
}

// isCapturing is always false for streams that symmem created.
func (s *Stream) isCapturing() bool {
	if s.adopted == nil {
		return false
	}

	capturing, err := s.adopted.IsCapturing()
	return capturing || err != nil
}
