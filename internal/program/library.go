// Package program contains code that "symmem verify" and package internal/chaos share.
package program

import (
	"errors"
	"fmt"
	"runtime"

	"symmem"
	"symmem/internal/cuda"
)

// Library imitates PyTorch or another GPU library in the same process. It calls CUDA directly.
type Library struct {
	Streams []*symmem.Stream // adopted by the Runtime

	gpu           *cuda.Driver // calls CUDA in the device's primary context
	device        cuda.Device
	captureMode   cuda.CaptureMode
	streamHandles []cuda.Stream // of all created streams, adopted or not
	interop       symmem.Interop
}

// NewLibrary returns a library with streamCount streams on the GPU of rt.
func NewLibrary(rt *symmem.Runtime, streamCount int) (*Library, error) {
	gpu, err := cuda.Load()
	if err != nil {
		return nil, err
	}

	l := &Library{interop: rt.Interop()}
	l.device, err = gpu.Device(rt.Device().Ordinal)
	if err != nil {
		return nil, err
	}

	primary, err := l.device.RetainPrimary()
	if err != nil {
		return nil, err
	}

	l.gpu = gpu.InContext(primary)
	l.captureMode = cuda.CaptureGlobal // as in PyTorch
	if rt.World().Stats().Tuning.Machines > 1 {
		// NCCL can invalidate global captures; see nccl.CapturesInvalidated.
		l.captureMode = cuda.CaptureThreadLocal
	}

	for range streamCount {
		if err := l.addStream(); err != nil {
			err = fmt.Errorf("creating streams of another library: %w", err)
			closeErr := l.Close()
			return nil, errors.Join(err, closeErr)
		}
	}

	return l, nil
}

// addStream creates a stream and lets the Runtime adopt it.
func (l *Library) addStream() error {
	handle, err := l.gpu.StreamCreate()
	if err != nil {
		return err
	}

	l.streamHandles = append(l.streamHandles, handle)
	stream, err := l.interop.AdoptStream(uintptr(handle))
	if err != nil {
		return err
	}

	l.Streams = append(l.Streams, stream)
	return nil
}

// Close destroys the streams, and releases the primary context. Call it after Runtime.Close.
func (l *Library) Close() error {
	var errs []error
	for _, handle := range l.streamHandles {
		destroyErr := l.gpu.StreamDestroy(handle)
		errs = append(errs, destroyErr)
	}

	releaseErr := l.device.ReleasePrimary()
	errs = append(errs, releaseErr)
	return errors.Join(errs...)
}

// Memory allocates memory with cuMemAllocAsync on the first stream, and waits until it is usable.
// The caller must call free unless it is nil, even after an error.
func (l *Library) Memory(bytes int64) (m symmem.Memory, free func() error, err error) {
	stream := l.streamHandles[0]
	address, err := l.gpu.MemAllocAsync(bytes, stream)
	if err != nil {
		return symmem.Memory{}, nil, err
	}

	free = func() error { return l.gpu.MemFreeAsync(address, stream) }
	m, memoryErr := l.interop.Memory(address, bytes)
	waitErr := l.gpu.StreamSynchronize(stream)
	return m, free, errors.Join(memoryErr, waitErr)
}

// LibraryGraph is a graph that a Library has captured.
type LibraryGraph struct {
	library    *Library
	captured   cuda.Graph
	executable cuda.GraphExec
}

// Capture captures the work that record queues on the given streams of the library.
func (l *Library) Capture(streams []*symmem.Stream, record func() error) (*LibraryGraph, error) {
	captured, err := l.capture(streams, record)
	g := &LibraryGraph{library: l, captured: captured} // to be closed even after an error
	if err == nil {
		g.executable, err = l.gpu.GraphInstantiate(captured)
	}

	if err != nil {
		closeErr := g.Close()
		return nil, errors.Join(err, closeErr)
	}

	return g, nil
}

// capture begins on the first stream, as in PyTorch. The other streams join the capture by waiting
// for the first stream. At the end, the first stream waits for the others.
func (l *Library) capture(streams []*symmem.Stream, record func() error) (cuda.Graph, error) {
	// A capture must end on the thread on which it began.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	firstStream := cuda.Stream(streams[0].Handle())
	if err := l.gpu.BeginCapture(firstStream, l.captureMode); err != nil {
		return 0, err
	}

	var errs []error
	for _, s := range streams[1:] {
		forkErr := l.addWait(cuda.Stream(s.Handle()), firstStream)
		errs = append(errs, forkErr)
	}

	haveAllJoined := errors.Join(errs...) == nil
	if haveAllJoined {
		errs = append(errs, record())
	}

	// After an error, the capture must still end.
	for _, s := range streams[1:] {
		joinErr := l.addWait(firstStream, cuda.Stream(s.Handle()))
		errs = append(errs, joinErr)
	}

	captured, endErr := l.gpu.EndCapture(firstStream)
	errs = append(errs, endErr)
	return captured, errors.Join(errs...)
}

// addWait makes waiter wait for the work that is queued on awaited.
func (l *Library) addWait(waiter, awaited cuda.Stream) error {
	event, err := l.gpu.EventCreate(cuda.EventDisableTiming)
	if err != nil {
		return err
	}

	recordErr := l.gpu.EventRecord(event, awaited)
	waitErr := l.gpu.StreamWaitEvent(waiter, event)
	destroyErr := l.gpu.EventDestroy(event) // does not end the wait
	return errors.Join(recordErr, waitErr, destroyErr)
}

// Launch queues the captured work on one of the library's streams.
func (g *LibraryGraph) Launch(s *symmem.Stream) error {
	return g.library.gpu.GraphLaunch(g.executable, cuda.Stream(s.Handle()))
}

// Close destroys the graph.
func (g *LibraryGraph) Close() error {
	var executableErr, capturedErr error
	if g.executable != 0 {
		executableErr = g.library.gpu.GraphExecDestroy(g.executable)
	}

	if g.captured != 0 {
		capturedErr = g.library.gpu.GraphDestroy(g.captured)
	}

	return errors.Join(executableErr, capturedErr)
}
