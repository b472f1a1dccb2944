package cuda

import (
	"runtime"
	"time"
	"unsafe"

	"symmem/internal/dl"
)

// Stream is an ordered queue of work on a device: CUstream, which is also cudaStream_t. 0 is the
// legacy default stream, which others wait for unless they were made non-blocking.
type Stream uintptr

// streams has the functions of the driver for streams, events and captures.
type streams struct{ table }

// StreamCreate makes a stream of the current context, which does not wait for the default stream.
func (s *streams) StreamCreate() (Stream, error) {
	const nonBlocking = 1 // CU_STREAM_NON_BLOCKING
	return made[Stream](&s.table, streamCreate, nonBlocking)
}

// StreamDestroy gives a stream back. Queued work still runs; the call does not wait for it.
func (s *streams) StreamDestroy(stream Stream) error {
	return s.call(streamDestroy, uintptr(stream))
}

// StreamQuery reports whether all queued work has run. It does not block or allocate.
func (s *streams) StreamQuery(stream Stream) (done bool, err error) {
	return s.query(streamQuery, uintptr(stream))
}

// StreamSynchronize blocks the thread until all queued work has run. There is no deadline: a
// caller that needs one records an event and asks for that.
func (s *streams) StreamSynchronize(stream Stream) error {
	return s.call(streamSynchronize, uintptr(stream))
}

// StreamWaitEvent makes later work of a stream wait for the point that an event marks now. The
// caller is not blocked.
func (s *streams) StreamWaitEvent(stream Stream, event Event) error {
	return s.call(streamWaitEvent, uintptr(stream), uintptr(event), 0)
}

// waitExternal is CU_EVENT_WAIT_EXTERNAL.
const waitExternal = 1

// StreamWaitEventExternal makes a stream that is captured wait, in each launch of the graph, for an
// event from outside of the capture: for the point that it marks at the launch.
func (s *streams) StreamWaitEventExternal(stream Stream, event Event) error {
	return s.call(streamWaitEvent, uintptr(stream), uintptr(event), waitExternal)
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
func (s *streams) StreamWaitValue(
	stream Stream, word uintptr, value uint32, flags WaitFlags,
) error {
	return s.call(streamWaitValue32, uintptr(stream), word, uintptr(value), uintptr(flags))
}

// StreamWriteValue makes a stream write a word of memory that it can reach, of a peer device too,
// after all work queued before, whose writes are seen by whoever sees the word.
func (s *streams) StreamWriteValue(stream Stream, word uintptr, value uint32) error {
	return s.call(streamWriteValue32, uintptr(stream), word, uintptr(value), 0)
}

// LaunchHostFunc queues work of the host. It costs the stream tens of microseconds.
func (s *streams) LaunchHostFunc(stream Stream, work HostFunc) error {
	return s.call(launchHostFunc, uintptr(stream), runHost(), uintptr(work))
}

// Event marks a point in a stream: CUevent.
type Event uintptr

// EventFlags say what an event can do: CUevent_flags.
type EventFlags uint32

// EventDisableTiming makes an event cheaper, and useless for EventElapsedTime.
const EventDisableTiming EventFlags = 2

// EventCreate makes an event of the current context. One that was never recorded is done.
func (s *streams) EventCreate(flags EventFlags) (Event, error) {
	return made[Event](&s.table, eventCreate, uintptr(flags))
}

// EventRecord marks the point after everything queued on a stream so far.
func (s *streams) EventRecord(event Event, stream Stream) error {
	return s.call(eventRecord, uintptr(event), uintptr(stream))
}

// EventQuery reports whether the point has been reached. It does not block or allocate. While a
// stream is captured in the global mode it is an ErrCaptureUnsupported and loses the capture,
// unless the thread has exchanged its mode.
func (s *streams) EventQuery(event Event) (done bool, err error) {
	return s.query(eventQuery, uintptr(event))
}

// EventDestroy gives an event back. Waits that it is part of still happen.
func (s *streams) EventDestroy(event Event) error { return s.call(eventDestroy, uintptr(event)) }

// EventElapsedTime is the time between two points, to about half a microsecond. Both events were
// made with timing, and have been reached: ErrNotReady otherwise.
func (s *streams) EventElapsedTime(start, end Event) (time.Duration, error) {
	milliseconds := dl.NewCell(float32(0))
	err := s.call(eventElapsedTime, milliseconds.Address(), uintptr(start), uintptr(end))
	return time.Duration(float64(milliseconds.Take()) * float64(time.Millisecond)), err
}

// CaptureMode says which calls are refused while a stream is captured: CUstreamCaptureMode.
// Refused are those that could wait for the captured work, such as EventQuery and cuMemAlloc; a
// refused call also invalidates the capture.
type CaptureMode int32

// The capture modes.
const (
	// CaptureGlobal refuses on every thread.
	CaptureGlobal CaptureMode = 0
	// CaptureRelaxed refuses nothing.
	CaptureRelaxed CaptureMode = 2
)

// CaptureStatus is the state of a stream: CUstreamCaptureStatus.
type CaptureStatus int32

// The capture states. An invalidated capture ends with EndCapture, too.
const (
	CaptureNone        CaptureStatus = 0
	CaptureActive      CaptureStatus = 1
	CaptureInvalidated CaptureStatus = 2
)

// BeginCapture makes a stream note down work for a graph instead of running it. With other modes
// than CaptureRelaxed the same thread calls EndCapture.
func (s *streams) BeginCapture(stream Stream, mode CaptureMode) error {
	return s.call(streamBeginCapture, uintptr(stream), uintptr(mode))
}

// EndCapture ends the capture and returns the graph, which the caller owns. An error that matches
// ErrCaptureInvalidated, or another of its kind, comes without one, and ends the capture as well.
func (s *streams) EndCapture(stream Stream) (Graph, error) {
	graph := dl.NewCell(Graph(0))
	err := s.call(streamEndCapture, uintptr(stream), graph.Address())
	return graph.Take(), err
}

// CaptureStatus reports whether a stream is captured. It may be called during any capture, and does
// not block or allocate. Asking about the default stream while another is captured is an
// ErrCaptureImplicit.
func (s *streams) CaptureStatus(stream Stream) (CaptureStatus, error) {
	status := dl.NewCell(CaptureNone)
	err := s.call(streamIsCapturing, uintptr(stream), status.Address())
	return status.Take(), err
}

// Capture describes the capture that a stream is in.
type Capture struct {
	Status CaptureStatus
	// ID is unlike that of any other capture of the process; 0 without one.
	ID uint64
	// Graph is the one under capture, to which nodes and dependencies may be added while the
	// capture goes on; 0 without an active capture. It belongs to whoever captures.
	Graph Graph
	// Tips are the nodes that the next work of the stream will depend on.
	Tips []Node
}

// CaptureInfo is CaptureStatus with the graph under capture and the place of the stream in it.
func (s *streams) CaptureInfo(stream Stream) (Capture, error) {
	status, id := dl.NewCell(CaptureNone), dl.NewCell(uint64(0))
	graph, tips := dl.NewCell(Graph(0)), dl.NewCell(uintptr(0))
	count, edges := dl.NewCell(uint64(0)), dl.NewCell(uintptr(0))
	var err error
	if s.symbols[streamGetCaptureInfo3] != 0 {
		// Without a place for the data of the edges CUDA refuses where there are some.
		err = s.call(streamGetCaptureInfo3, uintptr(stream), status.Address(), id.Address(),
			graph.Address(), tips.Address(), edges.Address(), count.Address())
	} else {
		err = s.call(streamGetCaptureInfo, uintptr(stream), status.Address(), id.Address(),
			graph.Address(), tips.Address(), count.Address())
	}
	edges.Take()
	c := Capture{Status: status.Take(), ID: id.Take(), Graph: graph.Take()}
	at, n := tips.Take(), count.Take()
	if err != nil || c.Status != CaptureActive {
		// CUDA leaves unset what there is none of.
		c.Graph, at = 0, 0
		if c.Status == CaptureNone {
			c.ID = 0
		}
	}
	if at != 0 && n > 0 {
		// The array is CUDA's, and good until the next call for the stream.
		c.Tips = make([]Node, n)
		for i := range c.Tips {
			c.Tips[i] = dl.Load[Node](at + uintptr(i)*unsafe.Sizeof(Node(0)))
		}
	}
	return c, err
}

// CaptureAfter makes the next work of a stream that is captured depend on nodes of the capture,
// too.
func (s *streams) CaptureAfter(stream Stream, nodes []Node) error {
	const add = 0 // CU_STREAM_ADD_CAPTURE_DEPENDENCIES
	at, n := addressOf(nodes), uintptr(len(nodes))
	defer runtime.KeepAlive(nodes)
	if s.symbols[streamUpdateCapture2] != 0 {
		return s.call(streamUpdateCapture2, uintptr(stream), at, 0, n, add)
	}
	return s.call(streamUpdateCapture, uintptr(stream), at, n, add)
}

// ThreadExchangeCaptureMode sets what captures of other threads, or its own, refuse to the calling
// thread, and returns what it was. Setting CaptureRelaxed around calls that a capture would refuse
// lets them through; the old mode is set again afterwards, on the same thread.
func (s *streams) ThreadExchangeCaptureMode(mode CaptureMode) (CaptureMode, error) {
	cell := dl.NewCell(mode)
	err := s.call(threadExchangeStreamCaptureMode, cell.Address())
	return cell.Take(), err
}
