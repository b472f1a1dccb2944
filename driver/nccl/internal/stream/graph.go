package stream

import (
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Graph is work captured from a stream, such as copies and group calls (collectives of a
// communicator). Each Launch queues all work of the graph on a stream. Launches of one graph do not
// overlap. Close a Graph before the communicators of its calls.
//
// Until EndCapture, Stream.Mu guards all fields. Afterwards, the fields above mu are constant.
type Graph struct {
	streams       *Streams
	Calls         Calls
	priorWork     *Event          // end of the work before the capture; nil if the stream was idle
	endEvents     []*Event        // user events, recorded at the end of each launch
	awaitedPoints []*Point        // each launch waits for these points
	hostFuncs     []cuda.HostFunc // host functions of the capture
	words         []*gpu.Word     // words[i] signals the end of hostFuncs[i]
	HasOtherWaits bool            // launches may wait for work other than the group calls
	lastLaunchEnd *Event          // recorded after each launch; nil during the capture

	mu          ranked.Mutex[graphMu] // guards the following fields after EndCapture
	cudaGraph   cuda.Graph            // result of the capture, or 0
	executable  cuda.GraphExec        // instance of cudaGraph, or 0
	closed      bool                  // Close has been called
	isDestroyed bool                  // Close has destroyed the CUDA graph
}

// Calls holds the group calls of a graph.
type Calls interface {
	// Record adds a group call to a stream's capture. The caller must hold the locks of the stream
	// and the group.
	Record(stream *Stream, plan driver.Plan) error
	// Launch calls Graph.Queue and then Graph.RecordEvents. Graph.Launch calls it with the locks of
	// the graph and the stream held.
	Launch(g *Graph, stream *Stream) error
	// Close frees the resources of the calls. If launchesEnded is false, launches may still be
	// running.
	Close(launchesEnded bool)
}

// addHostFunc makes each launch of the graph start work on a new goroutine. The launch then waits
// until work stores done in word. Launches share the word, because they do not overlap.
func (g *Graph) addHostFunc(stream cuda.Stream, work func(word *gpu.Word, done uint32)) error {
	device := g.streams.GPU
	word, err := device.Words.Take(device.CUDA)
	if err != nil {
		return err
	}

	g.words = append(g.words, word)
	g.HasOtherWaits = true
	const (
		running = 0
		done    = 1
	)
	f := cuda.NewHostFunc(func() {
		word.Set(running)
		go work(word, done)
	})
	g.hostFuncs = append(g.hostFuncs, f)
	if err := device.CUDA.LaunchHostFunc(stream, f); err != nil {
		return err
	}

	return device.CUDA.StreamWaitValue(stream, word.Address(), done, cuda.WaitEqual)
}

// endCapture ends the capture of s and prepares the graph for launches. If it fails, the caller
// must close the graph. The caller must hold s.Mu, with the CUDA context current.
func (g *Graph) endCapture(s *Stream) error {
	streams := g.streams
	api := streams.GPU.CUDA
	var err error
	g.cudaGraph, err = api.EndCapture(s.CUDA)
	if err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}

	g.lastLaunchEnd = streams.NewEvent()
	g.executable, err = api.GraphInstantiate(g.cudaGraph)
	if err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}

	streams.addOpenGraph(g)
	return nil
}

// Launch queues the recorded work on a stream of the same device.
func (g *Graph) Launch(stream driver.Stream) error {
	s, err := g.streams.Lookup(stream)
	if err != nil {
		return err
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("launching a graph: %w", driver.ErrClosed)
	}

	if err := g.launchLocked(s); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}

	return nil
}

// launchLocked is Launch for an open graph. The caller must hold g.mu.
func (g *Graph) launchLocked(s *Stream) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.ClearWaitedFor()
	if err := checkCanLaunch(s); err != nil {
		return err
	}

	mayBlock := g.HasOtherWaits || s.isAdopted
	if mayBlock {
		if err := recordAllGroups(s); err != nil {
			return err
		}
	}

	return g.Calls.Launch(g, s)
}

// checkCanLaunch returns an error if s is closed or being captured. The caller must hold s.Mu.
func checkCanLaunch(s *Stream) error {
	if err := s.CheckOpen(); err != nil {
		return err
	}

	if s.Capture != nil {
		return fmt.Errorf("the stream is capturing: %w", driver.ErrCapturing)
	}

	if !s.isAdopted {
		return nil
	}

	isCapturing, err := s.IsCapturing()
	if err != nil {
		return err
	}

	if isCapturing {
		return fmt.Errorf("another library is capturing the stream: %w", driver.ErrCapturing)
	}

	return nil
}

// Queue launches the CUDA graph. The caller must hold the locks of the graph and the stream, and
// the CUDA context must be current.
func (g *Graph) Queue(s *Stream) error {
	return g.streams.GPU.CUDA.GraphLaunch(g.executable, s.CUDA)
}

// RecordEvents records the events of a launch. It follows Queue, with the same requirements.
func (g *Graph) RecordEvents(s *Stream) error {
	for _, e := range g.endEvents {
		if err := e.Record(s.CUDA); err != nil {
			return err
		}
	}

	return g.lastLaunchEnd.Record(s.CUDA)
}

// Close waits for launches, for a limited time, and destroys the graph. If CUDA cannot destroy it,
// NCCL still uses the resources of its calls. Close then keeps them, and can be repeated.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isDestroyed {
		return nil
	}

	g.closed = true
	waitErr := g.awaitLaunches()
	if err := g.streams.GPU.Do(g.destroy); err != nil {
		g.streams.addOpenGraph(g) // so that CloseGraphs tries again
		return errors.Join(waitErr, err)
	}

	g.isDestroyed = true
	for _, f := range g.hostFuncs {
		f.Release()
	}

	launchesEnded := waitErr == nil
	if launchesEnded {
		g.streams.GPU.Words.Put(g.words...)
	}

	g.Calls.Close(launchesEnded)
	g.streams.removeGraph(g)
	return waitErr
}

// awaitLaunches waits for the last launch, for a limited time. The caller must hold g.mu.
func (g *Graph) awaitLaunches() error {
	if g.lastLaunchEnd == nil {
		return nil
	}

	limit := gpu.CloseTimeout(g.streams.GPU.Timeout)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return g.lastLaunchEnd.Synchronize(ctx)
}

// destroy can be repeated after an error. The caller must hold g.mu, and the CUDA context must be
// current.
func (g *Graph) destroy() error {
	api := g.streams.GPU.CUDA
	if g.executable != 0 {
		if err := api.GraphExecDestroy(g.executable); err != nil {
			return err
		}

		g.executable = 0
	}

	if g.cudaGraph != 0 {
		if err := api.GraphDestroy(g.cudaGraph); err != nil {
			return err
		}

		g.cudaGraph = 0
	}

	return nil
}
