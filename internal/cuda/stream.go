package cuda

import (
	"runtime"
	"time"
	"unsafe"

	"symmem/internal/dl"
)

// streams calls the functions for streams and events.
type streams struct{ table }

// Stream executes queued work in order (CUstream). 0 is the legacy default stream.
type Stream uintptr

// Event marks a point in a stream (CUevent). Other streams can wait for the point.
type Event uintptr

// EventFlags selects the features of an event (CUevent_flags).
type EventFlags uint32

// EventDisableTiming makes an event cheaper, but unusable for EventElapsedTime.
const EventDisableTiming EventFlags = 2

// StreamCreate creates a stream that does not synchronize with the default stream.
func (s *streams) StreamCreate() (Stream, error) {
	const nonBlocking = 1 // CU_STREAM_NON_BLOCKING
	return getValue[Stream](&s.table, streamCreate, nonBlocking)
}

// StreamDestroy destroys a stream. Its queued work still runs.
func (s *streams) StreamDestroy(stream Stream) error {
	return s.call(streamDestroy, uintptr(stream))
}

// StreamQuery reports whether all work of a stream has completed.
func (s *streams) StreamQuery(stream Stream) (done bool, err error) {
	return s.query(streamQuery, uintptr(stream))
}

// StreamSynchronize waits for all work of a stream.
func (s *streams) StreamSynchronize(stream Stream) error {
	return s.call(streamSynchronize, uintptr(stream))
}

// StreamWaitEvent makes later work of a stream wait for the point that an event marks now.
func (s *streams) StreamWaitEvent(stream Stream, event Event) error {
	const noFlags = 0
	return s.call(streamWaitEvent, uintptr(stream), uintptr(event), noFlags)
}

// StreamWaitEventExternal makes each launch of a graph under capture wait for an event that is
// recorded outside the capture.
func (s *streams) StreamWaitEventExternal(stream Stream, event Event) error {
	const external = 1 // CU_EVENT_WAIT_EXTERNAL
	return s.call(streamWaitEvent, uintptr(stream), uintptr(event), external)
}

// WaitFlags is the condition of a StreamWaitValue (CUstreamWaitValue_flags).
type WaitFlags uint32

// The conditions for the 32-bit value *address.
const (
	WaitGreaterOrEqual WaitFlags = 0 // int32(*address-value) >= 0, for a counter that wraps around
	WaitEqual          WaitFlags = 1 // *address == value
)

// StreamWaitValue makes later work of a stream wait until the 32-bit value at an address, in device
// or page-locked memory, satisfies a condition.
func (s *streams) StreamWaitValue(
	stream Stream, address uintptr, value uint32, flags WaitFlags,
) error {
	return s.call(streamWaitValue32, uintptr(stream), address, uintptr(value), uintptr(flags))
}

// StreamWriteValue makes a stream write value to an address, which may be memory of another GPU. A
// reader that sees value also sees all earlier writes of the stream.
func (s *streams) StreamWriteValue(stream Stream, address uintptr, value uint32) error {
	const defaultFlags = 0 // CU_STREAM_WRITE_VALUE_DEFAULT: with a barrier before the write
	return s.call(streamWriteValue32, uintptr(stream), address, uintptr(value), defaultFlags)
}

// LaunchHostFunc makes a stream call a Go function, and wait until it returns.
func (s *streams) LaunchHostFunc(stream Stream, work HostFunc) error {
	return s.call(launchHostFunc, uintptr(stream), hostCallback(), uintptr(work))
}

// EventCreate creates an event. Until its first EventRecord, EventQuery returns true.
func (s *streams) EventCreate(flags EventFlags) (Event, error) {
	return getValue[Event](&s.table, eventCreate, uintptr(flags))
}

// EventRecord makes an event mark the end of a stream's queued work.
func (s *streams) EventRecord(event Event, stream Stream) error {
	return s.call(eventRecord, uintptr(event), uintptr(stream))
}

// EventQuery reports whether the work before the last EventRecord has completed. During a capture
// with CaptureGlobal, EventQuery and StreamQuery fail and invalidate the capture, except on threads
// in mode CaptureRelaxed (ThreadExchangeCaptureMode).
func (s *streams) EventQuery(event Event) (done bool, err error) {
	return s.query(eventQuery, uintptr(event))
}

// EventDestroy destroys an event without waiting for it.
func (s *streams) EventDestroy(event Event) error { return s.call(eventDestroy, uintptr(event)) }

// EventElapsedTime returns the time between two events that were created without
// EventDisableTiming, or ErrNotReady if the work before one of them has not completed.
func (s *streams) EventElapsedTime(start, end Event) (time.Duration, error) {
	milliseconds := dl.NewCell(float32(0))
	err := s.call(eventElapsedTime, milliseconds.Address(), uintptr(start), uintptr(end))
	nanoseconds := float64(milliseconds.Take()) * float64(time.Millisecond)
	return time.Duration(nanoseconds), err
}

// CaptureMode selects the threads on which unsafe calls, such as EventQuery, fail and invalidate a
// capture (CUstreamCaptureMode).
type CaptureMode int32

// The capture modes, by the threads on which unsafe calls fail.
const (
	CaptureGlobal      CaptureMode = 0 // all threads
	CaptureThreadLocal CaptureMode = 1 // the capturing thread
	CaptureRelaxed     CaptureMode = 2 // no thread
)

// CaptureStatus is the capture state of a stream (CUstreamCaptureStatus).
type CaptureStatus int32

// The capture states.
const (
	CaptureNone        CaptureStatus = 0
	CaptureActive      CaptureStatus = 1
	CaptureInvalidated CaptureStatus = 2 // EndCapture must still be called
)

// BeginCapture makes a stream record work into a graph until EndCapture, instead of executing the
// work. A stream that waits for an event of the capture joins the capture. EndCapture must be
// called on the same thread, unless mode is CaptureRelaxed.
func (s *streams) BeginCapture(stream Stream, mode CaptureMode) error {
	return s.call(streamBeginCapture, uintptr(stream), uintptr(mode))
}

// EndCapture returns the captured graph, which the caller owns, or an error such as
// ErrCaptureInvalidated.
func (s *streams) EndCapture(stream Stream) (Graph, error) {
	graph := dl.NewCell(Graph(0))
	err := s.call(streamEndCapture, uintptr(stream), graph.Address())
	return graph.Take(), err
}

// CaptureStatus returns the capture state, without invalidating a capture. For the default stream,
// it returns ErrCaptureImplicit while another stream is being captured.
func (s *streams) CaptureStatus(stream Stream) (CaptureStatus, error) {
	status := dl.NewCell(CaptureNone)
	err := s.call(streamIsCapturing, uintptr(stream), status.Address())
	return status.Take(), err
}

// Capture describes the capture of a stream.
type Capture struct {
	Status CaptureStatus
	ID     uint64 // unique in the process; 0 if Status is CaptureNone

	// The following fields are set only if Status is CaptureActive.

	Graph        Graph  // must not be destroyed; nodes may be added
	Dependencies []Node // the stream's next work depends on these nodes
}

// CaptureInfo describes the capture of a stream.
func (s *streams) CaptureInfo(stream Stream) (Capture, error) {
	status, id := dl.NewCell(CaptureNone), dl.NewCell(uint64(0))
	graph := dl.NewCell(Graph(0))
	nodes, count := dl.NewCell(uintptr(0)), dl.NewCell(uint64(0)) // address and length of an array
	edgeData := dl.NewCell(uintptr(0))                            // required, not used
	var err error
	if s.has(streamGetCaptureInfo3) { // since CUDA 12.3
		err = s.call(streamGetCaptureInfo3, uintptr(stream), status.Address(), id.Address(),
			graph.Address(), nodes.Address(), edgeData.Address(), count.Address())
	} else {
		err = s.call(streamGetCaptureInfo, uintptr(stream), status.Address(), id.Address(),
			graph.Address(), nodes.Address(), count.Address())
	}

	edgeData.Take() // releases the cell
	capture := Capture{Status: status.Take(), ID: id.Take(), Graph: graph.Take()}
	nodesAddress, nodeCount := nodes.Take(), count.Take()
	if capture.Status == CaptureNone {
		capture.ID = 0
	}

	isActive := err == nil && capture.Status == CaptureActive
	if !isActive {
		capture.Graph = 0
		return capture, err
	}

	capture.Dependencies = copyNodes(nodesAddress, nodeCount)
	return capture, nil
}

// copyNodes copies an array that CUDA may overwrite in the next call for the stream.
func copyNodes(address uintptr, count uint64) []Node {
	if address == 0 || count == 0 {
		return nil
	}

	nodes := make([]Node, count)
	for i := range nodes {
		offset := uintptr(i) * unsafe.Sizeof(Node(0))
		nodes[i] = dl.Read[Node](address + offset)
	}

	return nodes
}

// AddCaptureDependencies makes the next captured work on a stream depend on more nodes.
func (s *streams) AddCaptureDependencies(stream Stream, nodes []Node) error {
	const add = 0 // CU_STREAM_ADD_CAPTURE_DEPENDENCIES
	address, count := addressOf(nodes), uintptr(len(nodes))
	defer runtime.KeepAlive(nodes)
	if s.has(streamUpdateCapture2) {
		const noEdgeData = 0
		return s.call(streamUpdateCapture2, uintptr(stream), address, noEdgeData, count, add)
	}

	return s.call(streamUpdateCapture, uintptr(stream), address, count, add)
}

// ThreadExchangeCaptureMode sets the calling thread's capture mode, and returns the previous one.
func (s *streams) ThreadExchangeCaptureMode(mode CaptureMode) (CaptureMode, error) {
	cell := dl.NewCell(mode) // CUDA swaps in the previous mode
	err := s.call(threadExchangeStreamCaptureMode, cell.Address())
	return cell.Take(), err
}
