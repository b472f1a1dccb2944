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

// Streams creates the streams and events of a device, and closes its graphs.
type Streams struct {
	// The creator sets these fields before the first use.

	GPU            *gpu.GPU
	Groups         func() []Group       // groups that are open or being torn down
	LongestTimeout func() time.Duration // longest timeout of the device and its groups
	NewCalls       func() Calls         // returns empty calls for a new Graph

	Capturing atomic.Int32 // number of streams between BeginCapture and EndCapture
	// HappensBefore orders host functions (Go functions queued on a stream) in Go's memory model. A
	// host function loads it first and increments it last. After a wait for a stream, a goroutine
	// loads it to see the writes of host functions.
	HappensBefore atomic.Uint64
	pool          eventPool

	mu         ranked.Mutex[streamsMu] // guards the following fields
	graphs     map[*Graph]struct{}     // open graphs
	keptPoints []*Point                // see keepInCapture
}

// NewStream creates a stream.
func (streams *Streams) NewStream() (*Stream, error) {
	handle, err := gpu.Get(streams.GPU, streams.GPU.CUDA.StreamCreate)
	if err != nil {
		return nil, fmt.Errorf("creating a stream: %w", err)
	}

	return &Stream{streams: streams, gpu: streams.GPU, CUDA: handle}, nil
}

// Adopt returns a Stream for a CUDA stream of another library. Handle 0 is the default stream.
func (streams *Streams) Adopt(handle uintptr) (*Stream, error) {
	s := &Stream{
		streams: streams, gpu: streams.GPU, CUDA: cuda.Stream(handle),
		adoptedState: adoptedState{
			isAdopted: true, streams: streams, handle: cuda.Stream(handle),
			queuedEnd: Event{streams: streams},
		},
	}

	streams.GPU.Relaxed.Store(true)            // before IsCapturing, to protect captures
	if _, err := s.IsCapturing(); err != nil { // probably an invalid handle
		return nil, fmt.Errorf("adopting stream %#x: %w", handle, err)
	}

	return s, nil
}

// Lookup returns stream as a *Stream, or an error if stream was not created by streams.
func (streams *Streams) Lookup(stream driver.Stream) (*Stream, error) {
	if s, ok := stream.(*Stream); ok && s != nil && s.streams == streams {
		return s, nil
	}

	return nil, errOtherDevice
}

var errOtherDevice = errors.New("the stream belongs to another device")

// NewEvent returns an event that has not been recorded.
func (streams *Streams) NewEvent() *Event { return &Event{streams: streams} }

// runHostFunc calls work, and calls report with an error if work panics. In both cases, it then
// stores done in word, for which the stream waits.
func (streams *Streams) runHostFunc(work func(), report func(error), word *gpu.Word, done uint32) {
	streams.HappensBefore.Load()
	driver.GuardHere("work on a stream", work, func(err error) {
		if err != nil {
			report(err)
		}

		streams.HappensBefore.Add(1) // before Set, so that waiters see the writes of work
		word.Set(done)
	})
}

// keepInCapture keeps p reachable until the graph of another library's capture is destroyed. With
// an old CUDA driver, it keeps p reachable for the lifetime of streams.
func (streams *Streams) keepInCapture(stream cuda.Stream, p *Point) error {
	capture, err := streams.GPU.CUDA.CaptureInfo(stream)
	if err != nil {
		return err
	}

	isCapturing := capture.Graph != 0
	if !isCapturing {
		return nil
	}

	keepReachable := func() { runtime.KeepAlive(p) }
	err = streams.GPU.CUDA.CallAfterGraph(capture.Graph, keepReachable)
	isDriverOld := errors.As(err, new(*cuda.MissingError)) // CallAfterGraph needs CUDA 11.3
	if isDriverOld {
		streams.mu.Lock()
		defer streams.mu.Unlock()
		streams.keptPoints = append(streams.keptPoints, p)
		return nil
	}

	return err
}

// addOpenGraph makes CloseGraphs close g. Repeated calls have no effect.
func (streams *Streams) addOpenGraph(g *Graph) {
	streams.mu.Lock()
	defer streams.mu.Unlock()
	if streams.graphs == nil {
		streams.graphs = map[*Graph]struct{}{}
	}

	streams.graphs[g] = struct{}{}
}

func (streams *Streams) removeGraph(g *Graph) {
	streams.mu.Lock()
	defer streams.mu.Unlock()
	delete(streams.graphs, g)
}

// CloseGraphs closes all open graphs and returns all errors.
func (streams *Streams) CloseGraphs() error {
	streams.mu.Lock()
	graphs := slices.Collect(maps.Keys(streams.graphs)) // a copy, because Graph.Close locks streams.mu
	streams.mu.Unlock()
	var errs []error
	for _, g := range graphs {
		err := g.Close()
		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// Close destroys the CUDA events in the pool. The CUDA context must be current.
func (streams *Streams) Close() error { return streams.pool.destroyAll(streams.GPU.CUDA) }
