package symmem

import (
	"fmt"

	"symmem/driver"
)

// AdoptStream makes a Stream of one that another library has made, by its handle: a CUstream, which
// is also a cudaStream_t; on the host any number. It is numbered as a stream that NewStream makes.
// A Runtime makes and adopts at most 65,535 streams: adopt one once, and keep it.
//
// The owner may capture the stream: collectives then become a part of the owner's capture, memory
// that is not registered takes a path that needs no windows, and once a call is in the capture
// nothing can be registered on this rank until it ends. What the calls use stays until the owner
// has destroyed the graph and what it made of it: segments of pools, the group and the Runtime may
// be trimmed or closed meanwhile, and a replay then ends without a result. Buffers that are freed
// serve others all the same, as in PyTorch: the owner keeps those that its graphs use.
//
// The stream must live until ForgetStream, or until the Runtime is closed: Pool.Trim and
// Runtime.Close wait for what its owner has queued there, and Pool.Alloc of another stream asks
// about it where it needs free memory of this one; but see SetIdle. Else it is asked about where it
// is named in a call, and where a registration or a new call may meet a capture of it that has
// calls.
//
// No capture is lost to what symmem does in the background. What is called on the stream, or waits
// for it (Synchronize, ForgetStream, Pool.Trim, Pool.Close, Free of a Buffer of another stream that
// was used on it, Alloc where memory is short), is not called while another thread is inside CUDA's
// call that begins or ends a capture of the stream: CUDA's driver may crash there (580.159.04).
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

// SetIdle declares whether the owners of adopted streams have waited for all work that they have
// queued there. Pool.Trim and Runtime.Close then query no adopted stream, so owners may have
// destroyed streams without ForgetStream, and no other stream gets free memory of adopted ones.
func (i Interop) SetIdle(yes bool) {
	rt := i.rt
	rt.ownersWait.Store(yes)
	if yes {
		rt.captures.forget() // captures have ended, too
	}
}

// Captured reports whether the owner of a stream of another library captures it. It returns true if
// the state is unknown, so that callers do nothing that could invalidate a capture.
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

// ForgetStream ends the use of an adopted stream before its owner destroys it. It waits for
// unfinished work on the stream, up to twice Options.Timeout. After it, calls on the stream return
// ErrClosed; other streams are not affected. The stream's numbers, in the Runtime and in pools, are
// not reused, since ranks may forget streams at different times; they cost some hundred bytes in
// the Runtime and in each pool that the stream has used. Free memory that was last allocated on it
// goes to other streams when memory is short, and is unmapped by Pool.Trim.
func (i Interop) ForgetStream(s *Stream) {
	if s != nil && s.adopted != nil {
		_ = s.forget(driver.AdoptedStream.Close) // the group of the failed work returns the fault
	}
}

// forget is ForgetStream with the first error of the stream's work.
func (s *Stream) forget(end func(driver.AdoptedStream) error) error {
	s.rt.captures.note(s, false)
	return end(s.adopted)
}

// captured reports whether the owner of an adopted stream captures it, and true if the state is
// unknown.
func (s *Stream) captured() bool {
	if s.adopted == nil {
		return false
	}
	is, err := s.adopted.Captured()
	return is || err != nil
}
