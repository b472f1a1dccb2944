package cuda

import "symmem/internal/dl"

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

// CaptureStatus tells whether a stream is captured. It may be called during any capture, and does
// not block or allocate. Asking about the default stream while another is captured is an
// ErrCaptureImplicit.
func (d *Driver) CaptureStatus(stream Stream) (CaptureStatus, error) {
	status := dl.NewCell(CaptureNone)
	err := d.call(streamIsCapturing, uintptr(stream), status.Address())
	return status.Take(), err
}

// CaptureInfo is CaptureStatus with the number that the capture has, unlike any other of the
// process; 0 without a capture.
func (d *Driver) CaptureInfo(stream Stream) (status CaptureStatus, id uint64, err error) {
	s, i := dl.NewCell(CaptureNone), dl.NewCell(uint64(0))
	// The graph and its dependencies, and in _v3 data of its edges, are not wanted.
	if d.symbols[streamGetCaptureInfo3] != 0 {
		err = d.call(streamGetCaptureInfo3, uintptr(stream), s.Address(), i.Address(), 0, 0, 0, 0)
	} else {
		err = d.call(streamGetCaptureInfo, uintptr(stream), s.Address(), i.Address(), 0, 0, 0)
	}
	status, id = s.Take(), i.Take()
	if status == CaptureNone {
		id = 0 // CUDA leaves it unset
	}
	return status, id, err
}

// ThreadExchangeCaptureMode sets what captures of other threads, or its own, refuse to the calling
// thread, and returns what it was. Setting CaptureRelaxed around calls that a capture would refuse
// lets them through; the old mode is set again afterwards, on the same thread.
func (d *Driver) ThreadExchangeCaptureMode(mode CaptureMode) (CaptureMode, error) {
	cell := dl.NewCell(mode)
	err := d.call(threadExchangeStreamCaptureMode, cell.Address())
	return cell.Take(), err
}
