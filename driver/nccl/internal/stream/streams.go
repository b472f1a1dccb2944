package stream

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Streams creates a device's streams and events, and tracks its open graphs.
type Streams struct {
	GPU            *gpu.GPU
	Groups         func() []Group       // open or being torn down
	LongestTimeout func() time.Duration // of the device and its groups
	NewCalls       func() Calls         // for a new Graph
	Capturing      atomic.Int32         // number of streams being captured
	// HappensBefore orders host functions in Go's memory model. A host function loads it before it
	// runs and increments it afterwards. Code that has seen work complete must load it.
	HappensBefore atomic.Uint64
	pool          eventPool

	mu         ranked.Mutex[streamsMu]
	graphs     map[*Graph]struct{} // open graphs; guarded by mu
	keptPoints []*Point            // in graphs of other libraries; guarded by mu
}

// NewStream creates a stream.
func (streams *Streams) NewStream() (*Stream, error) {
	handle, err := gpu.Get(streams.GPU, streams.GPU.CUDA.StreamCreate)
	if err != nil {
		return nil, fmt.Errorf("creating a stream: %w", err)
	}
	return &Stream{streams: streams, gpu: streams.GPU, CUDA: handle}, nil
}

// Adopt wraps a stream that another library created.
func (streams *Streams) Adopt(handle uintptr) (*Stream, error) {
	s := &Stream{
		streams: streams, gpu: streams.GPU, CUDA: cuda.Stream(handle),
		adoptedState: adoptedState{
			isAdopted: true, streams: streams, handle: cuda.Stream(handle),
			queuedEnd: Event{streams: streams},
		},
	}
	streams.GPU.Adopted.Store(true)
	if _, err := s.IsCapturing(); err != nil {
		return nil, fmt.Errorf("adopting stream %#x: %w", handle, err)
	}
	return s, nil
}

// Lookup returns stream as a *Stream of this device.
func (streams *Streams) Lookup(stream driver.Stream) (*Stream, error) {
	if s, ok := stream.(*Stream); ok && s != nil && s.streams == streams {
		return s, nil
	}
	return nil, errOtherDevice
}

var errOtherDevice = errors.New("the stream belongs to another device")

// NewEvent returns an event that has not been recorded.
func (streams *Streams) NewEvent() *Event { return &Event{streams: streams} }

// keepInCapture keeps p alive for the graph that another library is capturing, or until the device
// closes if the CUDA driver cannot report the graph's end.
func (streams *Streams) keepInCapture(stream cuda.Stream, p *Point) error {
	capture, err := streams.GPU.CUDA.CaptureInfo(stream)
	if err != nil || capture.Graph == 0 {
		return err
	}
	err = streams.GPU.CUDA.CallAfterGraph(capture.Graph, func() { runtime.KeepAlive(p) })
	if missing := (*cuda.MissingError)(nil); errors.As(err, &missing) {
		streams.mu.Lock()
		defer streams.mu.Unlock()
		streams.keptPoints = append(streams.keptPoints, p)
		return nil
	}
	return err
}

func (streams *Streams) runHostFunc(work func(), report func(error), done *gpu.Word, value uint32) {
	streams.HappensBefore.Load()
	driver.GuardHere("work on a stream", work, func(err error) {
		if err != nil {
			report(err)
		}
		streams.HappensBefore.Add(1)
		done.Set(value)
	})
}

func (streams *Streams) addOpenGraph(g *Graph) {
	streams.mu.Lock()
	defer streams.mu.Unlock()
	if streams.graphs == nil {
		streams.graphs = map[*Graph]struct{}{}
	}
	streams.graphs[g] = struct{}{}
}

// CloseGraphs closes all open graphs.
func (streams *Streams) CloseGraphs() error {
	streams.mu.Lock()
	open := slices.Collect(maps.Keys(streams.graphs))
	streams.mu.Unlock()
	var errs []error
	for _, g := range open {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// Close destroys the unused CUDA events. The CUDA context must be current.
func (streams *Streams) Close() error { return streams.pool.destroyAll(streams.GPU.CUDA) }
