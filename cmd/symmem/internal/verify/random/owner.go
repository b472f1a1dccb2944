package random

import (
	"errors"
	"fmt"
	"runtime"

	"symmem"
	"symmem/internal/cuda"
)

// owner plays a library that has streams of its own and captures them, as PyTorch does: it makes
// its graphs and launches them by CUDA's calls, which symmem does not see. The streams are adopted.
type owner struct {
	// gpu makes the context current in each call.
	gpu     *cuda.Driver
	device  cuda.Device
	streams []cuda.Stream
}

// ownStreams is how many streams an owner has.
const ownStreams = 2

// newOwner makes an owner on the GPU of a Runtime.
func newOwner(rt *symmem.Runtime) (o *owner, err error) {
	gpu, err := cuda.Load()
	if err != nil {
		return nil, err
	}
	o = &owner{}
	if o.device, err = gpu.Device(rt.Interop().Ordinal()); err != nil {
		return nil, err
	}
	primary, err := o.device.RetainPrimary()
	if err != nil {
		return nil, err
	}
	o.gpu = gpu.In(primary)
	for range ownStreams {
		handle, err := o.gpu.StreamCreate()
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		o.streams = append(o.streams, handle)
	}
	return o, nil
}

// close ends the streams. The Runtime that has adopted them is closed.
func (o *owner) close() error {
	var errs []error
	for _, handle := range o.streams {
		errs = append(errs, o.gpu.StreamDestroy(handle))
	}
	return errors.Join(append(errs, o.device.ReleasePrimary())...)
}

// ownGraph is a graph that the owner has captured.
type ownGraph struct {
	owner  *owner
	source cuda.Graph
	exec   cuda.GraphExec
}

// capture records what is queued on an adopted stream meanwhile. It uses the mode that PyTorch
// does, in which a capture ends on the thread where it has begun.
func (o *owner) capture(s *symmem.Stream, record func() error) (*ownGraph, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	handle := cuda.Stream(s.Handle())
	if err := o.gpu.BeginCapture(handle, cuda.CaptureGlobal); err != nil {
		return nil, err
	}
	failed := record()
	source, err := o.gpu.EndCapture(handle)
	g := &ownGraph{owner: o, source: source}
	if err == nil && failed == nil {
		g.exec, err = o.gpu.GraphInstantiate(source)
	}
	if err := errors.Join(failed, err); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Launch queues the graph on an adopted stream.
func (g *ownGraph) Launch(s *symmem.Stream) error {
	return g.owner.gpu.GraphLaunch(g.exec, cuda.Stream(s.Handle()))
}

// Close destroys the graph.
func (g *ownGraph) Close() error {
	var errs []error
	if g.exec != 0 {
		errs = append(errs, g.owner.gpu.GraphExecDestroy(g.exec))
	}
	if g.source != 0 {
		errs = append(errs, g.owner.gpu.GraphDestroy(g.source))
	}
	return errors.Join(errs...)
}

// adopt gives the world an owner's streams, where it is on GPUs.
func (w *world) adopt() (err error) {
	if w.rt.Device().Backend != "nccl" {
		return nil
	}
	if w.owner, err = newOwner(w.rt); err != nil {
		return fmt.Errorf("making streams of another library: %w", err)
	}
	for _, handle := range w.owner.streams {
		s, err := w.rt.Interop().AdoptStream(uintptr(handle))
		if err != nil {
			return err
		}
		w.streams = append(w.streams, s)
		w.adopted = append(w.adopted, s)
	}
	return nil
}

// close closes the Runtime, and ends the streams that it had adopted.
func (w *world) close() error {
	err := w.rt.Close()
	if w.owner != nil {
		err = errors.Join(err, w.owner.close())
	}
	return err
}
