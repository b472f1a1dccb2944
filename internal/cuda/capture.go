package cuda

import (
	"runtime"
	"unsafe"

	"symmem/internal/dl"
)

// CaptureMode says which calls are refused while a stream is captured: CUstreamCaptureMode.
// Refused are those that could wait for the captured work, such as EventQuery and cuMemAlloc; a
// refused call also invalidates the capture.
type CaptureMode int32

// The capture modes.
const (
	// CaptureGlobal refuses on every thread.
	CaptureGlobal CaptureMode = 0
	// CaptureThreadLocal refuses on the capturing thread.
	CaptureThreadLocal CaptureMode = 1
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
func (d *Driver) BeginCapture(stream Stream, mode CaptureMode) error {
	return d.call(streamBeginCapture, uintptr(stream), uintptr(mode))
}

// EndCapture ends the capture and returns the graph, which the caller owns. An error that matches
// ErrCaptureInvalidated, or another of its kind, comes without one, and ends the capture as well.
func (d *Driver) EndCapture(stream Stream) (Graph, error) {
	graph := dl.NewCell(Graph(0))
	err := d.call(streamEndCapture, uintptr(stream), graph.Address())
	return graph.Take(), err
}

// CaptureStatus reports whether a stream is captured. It may be called during any capture, and does
// not block or allocate. Asking about the default stream while another is captured is an
// ErrCaptureImplicit.
func (d *Driver) CaptureStatus(stream Stream) (CaptureStatus, error) {
	status := dl.NewCell(CaptureNone)
	err := d.call(streamIsCapturing, uintptr(stream), status.Address())
	return status.Take(), err
}

// Capture is what CUDA says of the capture that a stream is in.
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
func (d *Driver) CaptureInfo(stream Stream) (Capture, error) {
	status, id := dl.NewCell(CaptureNone), dl.NewCell(uint64(0))
	graph, tips := dl.NewCell(Graph(0)), dl.NewCell(uintptr(0))
	count, edges := dl.NewCell(uint64(0)), dl.NewCell(uintptr(0))
	var err error
	if d.symbols[streamGetCaptureInfo3] != 0 {
		// Without a place for the data of the edges CUDA refuses where there are some.
		err = d.call(streamGetCaptureInfo3, uintptr(stream), status.Address(), id.Address(),
			graph.Address(), tips.Address(), edges.Address(), count.Address())
	} else {
		err = d.call(streamGetCaptureInfo, uintptr(stream), status.Address(), id.Address(),
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
func (d *Driver) CaptureAfter(stream Stream, nodes []Node) error {
	const add = 0 // CU_STREAM_ADD_CAPTURE_DEPENDENCIES
	at, n := addressOf(nodes), uintptr(len(nodes))
	defer runtime.KeepAlive(nodes)
	if d.symbols[streamUpdateCapture2] != 0 {
		return d.call(streamUpdateCapture2, uintptr(stream), at, 0, n, add)
	}
	return d.call(streamUpdateCapture, uintptr(stream), at, n, add)
}

// ThreadExchangeCaptureMode sets what captures of other threads, or its own, refuse to the calling
// thread, and returns what it was. Setting CaptureRelaxed around calls that a capture would refuse
// lets them through; the old mode is set again afterwards, on the same thread.
func (d *Driver) ThreadExchangeCaptureMode(mode CaptureMode) (CaptureMode, error) {
	cell := dl.NewCell(mode)
	err := d.call(threadExchangeStreamCaptureMode, cell.Address())
	return cell.Take(), err
}
