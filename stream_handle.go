package symmem

// Handle is the stream as other libraries know it, so that they can queue work on it: a CUstream on
// GPUs, which is also a cudaStream_t, and 0 where there is none, as on the host. It is valid until
// the Runtime is closed, and the same each time.
//
// Foreign work is ordered with symmem's by the order of calls, Synchronize waits for it, and while
// the stream captures it becomes a part of the capture. symmem does not see what memory it uses:
// the caller notes that by Buffer.UseOn for buffers of another stream, and frees what a capture
// uses only after its graph is closed. The thread that queues the work needs the GPU's primary
// context as its current one.
func (s *Stream) Handle() uintptr {
	if native, ok := s.queue.(interface{ Handle() uintptr }); ok {
		return native.Handle()
	}
	return 0
}
