package program

import (
	"errors"
	"fmt"
	"runtime"

	"symmem"
	"symmem/internal/cuda"
)

// Library imitates another GPU library in the process, such as PyTorch. It calls CUDA directly.
type Library struct {
	Streams []*symmem.Stream // the library's streams, which the Runtime has adopted

	gpu           *cuda.Driver     // uses the device's primary context in each call
	captureMode   cuda.CaptureMode // global, or thread-local on several machines
	device        cuda.Device
	streamHandles []cuda.Stream // handles of Streams
	interop       symmem.Interop
}

// NewLibrary returns a library with streamCount streams on the GPU of rt.
func NewLibrary(rt *symmem.Runtime, streamCount int) (l *Library, err error) {
	gpu, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	l = &Library{interop: rt.Interop()}
	l.device, err = gpu.Device(rt.Device().Ordinal)
	if err != nil {
		return nil, err
	}
	primary, err := l.device.RetainPrimary()
	if err != nil {
		return nil, err
	}
	l.gpu = gpu.InContext(primary)
	if rt.World().Stats().Tuning.Machines > 1 {
		// The defect nccl.CapturesInvalidated can invalidate captures in global mode.
		l.captureMode = cuda.CaptureThreadLocal
	}
	for range streamCount {
		if err := l.addStream(rt); err != nil {
			return nil, errors.Join(fmt.Errorf("creating streams of another library: %w", err), l.Close())
		}
	}
	return l, nil
}

// addStream creates a stream that the Runtime adopts.
func (l *Library) addStream(rt *symmem.Runtime) error {
	handle, err := l.gpu.StreamCreate()
	if err != nil {
		return err
	}
	l.streamHandles = append(l.streamHandles, handle)
	s, err := rt.Interop().AdoptStream(uintptr(handle))
	if err != nil {
		return err
	}
	l.Streams = append(l.Streams, s)
	return nil
}

// Close destroys the streams. The Runtime must have been closed.
func (l *Library) Close() error {
	var errs []error
	for _, handle := range l.streamHandles {
		errs = append(errs, l.gpu.StreamDestroy(handle))
	}
	return errors.Join(append(errs, l.device.ReleasePrimary())...)
}

// Memory allocates memory with cuMemAllocAsync on the first stream, and waits until the memory is
// usable. The caller must call free, which frees the memory on the same stream.
func (l *Library) Memory(bytes int64) (m symmem.Memory, free func() error, err error) {
	stream := l.streamHandles[0]
	address, err := l.gpu.MemAllocAsync(bytes, stream)
	if err != nil {
		return m, nil, err
	}
	free = func() error { return l.gpu.MemFreeAsync(address, stream) }
	m, err = l.interop.Memory(address, bytes)
	return m, free, errors.Join(err, l.gpu.StreamSynchronize(stream))
}

// LibraryGraph is a graph captured by a Library.
type LibraryGraph struct {
	library    *Library
	captured   cuda.Graph
	executable cuda.GraphExec
}

// Capture captures the work that record queues on the given streams of the library. Like a capture
// of PyTorch, it begins on the first stream, from which the others fork and which they join at the
// end, and uses CUDA's global mode unless the ranks are on several machines.
func (l *Library) Capture(streams []*symmem.Stream, record func() error) (*LibraryGraph, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	firstStream := cuda.Stream(streams[0].Handle())
	if err := l.gpu.BeginCapture(firstStream, l.captureMode); err != nil {
		return nil, err
	}
	var recordErr error
	for _, s := range streams[1:] {
		recordErr = errors.Join(recordErr, l.addWait(cuda.Stream(s.Handle()), firstStream))
	}
	if recordErr == nil {
		recordErr = record()
	}
	for _, s := range streams[1:] {
		recordErr = errors.Join(recordErr, l.addWait(firstStream, cuda.Stream(s.Handle())))
	}
	captured, err := l.gpu.EndCapture(firstStream)
	g := &LibraryGraph{library: l, captured: captured}
	if err == nil && recordErr == nil {
		g.executable, err = l.gpu.GraphInstantiate(captured)
	}
	if err := errors.Join(recordErr, err); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// addWait makes stream waiter wait for the work queued on stream awaited so far.
func (l *Library) addWait(waiter, awaited cuda.Stream) error {
	event, err := l.gpu.EventCreate(cuda.EventDisableTiming)
	if err != nil {
		return err
	}
	return errors.Join(l.gpu.EventRecord(event, awaited), l.gpu.StreamWaitEvent(waiter, event),
		l.gpu.EventDestroy(event))
}

// Launch queues the graph on one of the library's streams.
func (g *LibraryGraph) Launch(s *symmem.Stream) error {
	return g.library.gpu.GraphLaunch(g.executable, cuda.Stream(s.Handle()))
}

// Close destroys the graph.
func (g *LibraryGraph) Close() error {
	var errs []error
	if g.executable != 0 {
		errs = append(errs, g.library.gpu.GraphExecDestroy(g.executable))
	}
	if g.captured != 0 {
		errs = append(errs, g.library.gpu.GraphDestroy(g.captured))
	}
	return errors.Join(errs...)
}
