package cuda

import "symmem/internal/dl"

// Stream is an ordered queue of work on a device: CUstream, which is also cudaStream_t. 0 is the
// legacy default stream, which others wait for unless they were made non-blocking.
type Stream uintptr

// StreamCreate makes a stream of the current context. A non-blocking one does not wait for the
// default stream.
func (d *Driver) StreamCreate(nonblocking bool) (Stream, error) {
	flags := uintptr(0) // CU_STREAM_DEFAULT
	if nonblocking {
		flags = 1 // CU_STREAM_NON_BLOCKING
	}
	stream := dl.NewCell(Stream(0))
	err := d.call(streamCreate, stream.Address(), flags)
	return stream.Take(), err
}

// StreamDestroy gives a stream back. Queued work still runs; the call does not wait for it.
func (d *Driver) StreamDestroy(stream Stream) error {
	return d.call(streamDestroy, uintptr(stream))
}

// StreamQuery reports whether all queued work has run. It does not block or allocate.
func (d *Driver) StreamQuery(stream Stream) (done bool, err error) {
	return d.query(streamQuery, uintptr(stream))
}

// StreamSynchronize blocks the thread until all queued work has run. There is no deadline: a
// caller that needs one records an event and asks for that.
func (d *Driver) StreamSynchronize(stream Stream) error {
	return d.call(streamSynchronize, uintptr(stream))
}

// StreamWaitEvent makes later work of a stream wait for the point that an event marks now. The
// caller is not blocked.
func (d *Driver) StreamWaitEvent(stream Stream, event Event) error {
	return d.call(streamWaitEvent, uintptr(stream), uintptr(event), 0)
}

// waitExternal is CU_EVENT_WAIT_EXTERNAL.
const waitExternal = 1

// StreamWaitEventExternal makes a stream that is captured wait, in each launch of the graph, for an
// event from outside of the capture: for the point that it marks at the launch.
func (d *Driver) StreamWaitEventExternal(stream Stream, event Event) error {
	return d.call(streamWaitEvent, uintptr(stream), uintptr(event), waitExternal)
}

// WaitFlags say for what StreamWaitValue waits: CUstreamWaitValue_flags.
type WaitFlags uint32

// The flags.
const (
	// WaitGreaterOrEqual waits until int32(word-value) is not negative, so counters may wrap.
	WaitGreaterOrEqual WaitFlags = 0
	// WaitEqual waits until the word has the value.
	WaitEqual WaitFlags = 1
)

// StreamWaitValue makes later work of a stream wait for a word of device memory, or of host memory
// that MemAllocHost made. The stream looks at the word again and again; the caller is not blocked.
func (d *Driver) StreamWaitValue(
	stream Stream, word uintptr, value uint32, flags WaitFlags,
) error {
	return d.call(streamWaitValue32, uintptr(stream), word, uintptr(value), uintptr(flags))
}

// StreamWriteValue makes a stream write a word of memory that it can reach, of a peer device too,
// after all work queued before, whose writes are seen by whoever sees the word.
func (d *Driver) StreamWriteValue(stream Stream, word uintptr, value uint32) error {
	return d.call(streamWriteValue32, uintptr(stream), word, uintptr(value), 0)
}
