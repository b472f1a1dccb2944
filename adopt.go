package symmem

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream returns a Stream for another library's stream: a CUstream or cudaStream_t, or any
// number for the host backend. Adopt each stream once, because a Runtime can create and adopt at
// most 65,535 streams.
//
// The owner may capture the stream. The graph then contains collectives; they take a path without
// windows if their memory is not registered. Once it contains a collective, this rank cannot
// register memory until the capture ends. Destroy the graph and its instances before you free the
// buffers that they use. If pools, groups or the Runtime are trimmed or closed before that, later
// replays produce no result.
//
// The stream must exist until ForgetStream returns or the Runtime is closed. Pool.Trim and
// Runtime.Close wait for its work, unless SetIdle(true) is in effect. Allocations, registrations
// and collectives may query the stream.
//
// symmem's background work never invalidates a capture. However, the CUDA driver (580.159.04) may
// crash if a thread uses or waits for the stream while another begins or ends a capture of it.
// Synchronize, ForgetStream, Pool.Trim and Pool.Close may wait for the stream. So may Alloc when
// memory is short, and Free of another stream's Buffer that was used on this stream.
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

// SetIdle(true) declares that all work on adopted streams has finished, so their owners may destroy
// them without ForgetStream. Until SetIdle(false), Pool.Trim and Runtime.Close do not query adopted
// streams, and other streams do not get memory that was freed on an adopted stream.
func (i Interop) SetIdle(idle bool) {
	rt := i.rt
	rt.adoptedIdle.Store(idle)
	if idle {
		rt.captures.forget() // all captures have ended
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

// ForgetStream ends the use of an adopted stream, before its owner destroys it. ForgetStream waits
// for the stream's work, at most for twice Options.Timeout. Later calls on s return ErrClosed.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // the next call of a failed group returns the error
	}
}

func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.updateAdopted(s, false)
	return end(s.adopted)
}

// isCapturing always returns false for a stream that symmem created.
func (s *Stream) isCapturing() bool {
	if s.adopted == nil {
		return false
	}
	capturing, err := s.adopted.IsCapturing()
	return capturing || err != nil
}
