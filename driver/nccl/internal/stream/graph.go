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

// Graph is work that a stream has captured, that is, recorded instead of running it. For example,
// the graph contains a copy and a call of a group (a communicator). Each launch of the graph queues
// the copy and the call on a stream. Launches of one graph do not overlap.
//
// A Graph must be closed before the communicators of its calls.
type Graph struct {
	streams       *Streams
	Calls         Calls           // the calls of groups
	priorWork     *Event          // end of the work before the capture; nil if the stream was idle
	endEvents     []*Event        // recorded after each launch, because the capture recorded them
	awaitedPoints []*Point        // points in streams for which each launch waits
	hostFuncs     []cuda.HostFunc // functions that run on the host
	words         []*gpu.Word     // one for each of hostFuncs; see addHostFunc
	// HasOtherWaits is set if the graph may wait for anything except calls of groups on its stream.
	HasOtherWaits bool
	lastLaunchEnd *Event // recorded after each launch; nil before the end of the capture

	mu          ranked.Mutex[graphMu] // guards the following fields
	executable  cuda.GraphExec        // 0 if there is none
	cudaGraph   cuda.Graph            // 0 if there is none
	closed      bool                  // Close has been called
	isDestroyed bool                  // Close has destroyed the graph
}

// Calls holds the calls of groups in a graph. Each launch queues them anew, with new numbers.
type Calls interface {
	// Record adds a group call to a stream's capture. The caller must hold the locks of the stream
	// and the group.
	Record(stream *Stream, plan driver.Plan) error
	// Launch numbers the calls, and queues them with Graph.Queue and Graph.RecordEvents. The caller
	// must hold the locks of the graph and the stream.
	Launch(g *Graph, stream *Stream) error
	// Close frees the resources of the calls. launchesEnded is set if all launches have completed.
	Close(launchesEnded bool)
}

// addHostFunc adds a host function to the capture. Each launch calls run on a new goroutine, with a
// word of host memory, and waits until run has written value to the word. All launches use the same
// word, because they do not overlap.
func (g *Graph) addHostFunc(stream cuda.Stream, run func(word *gpu.Word, value uint32)) error {
	device := g.streams.GPU
	word, err := device.Words.Take(device.CUDA)
	if err != nil {
		return err
	}

	g.words = append(g.words, word)
	g.HasOtherWaits = true
	const running, done = 0, 1
	f := cuda.NewHostFunc(func() {
		word.Set(running)
		go run(word, done)
	})
	g.hostFuncs = append(g.hostFuncs, f)
	if err := device.CUDA.LaunchHostFunc(stream, f); err != nil {
		return err
	}

	return device.CUDA.StreamWaitValue(stream, word.Address(), done, cuda.WaitEqual)
}

// endCapture ends CUDA's capture of s and prepares the graph for launches. After an error, the
// caller must close the graph. The caller must hold s.Mu, and the CUDA context must be current.
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

	mayWaitForOthers := g.HasOtherWaits || s.isAdopted // the owner's work can wait for anything
	if mayWaitForOthers {
		// A group's next call on another stream waits for an event after the group's previous call.
		// Record the event before this launch, so that the call does not wait for the launch.
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

	isCapturing, err := s.IsCapturing() // by the library that owns the stream
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

// RecordEvents records the graph's events. Call it after Queue, under the same conditions.
func (g *Graph) RecordEvents(s *Stream) error {
	for _, e := range g.endEvents {
		if err := e.Record(s.CUDA); err != nil {
			return err
		}
	}

	return g.lastLaunchEnd.Record(s.CUDA)
}

// Close waits for unfinished launches, for a limited time, and destroys the graph. If CUDA fails
// to destroy the graph, Close keeps the resources of its calls, because NCCL keeps them, too. The
// next Close tries again, and the device calls Close when it is closed.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isDestroyed {
		return nil
	}

	g.closed = true
	waitErr := g.awaitLaunches()
	if err := g.streams.GPU.Do(g.destroy); err != nil {
		g.streams.addOpenGraph(g) // for the device; endCapture adds g only if it succeeds
		return errors.Join(waitErr, err)
	}

	g.isDestroyed = true
	for _, f := range g.hostFuncs {
		f.Release()
	}

	launchesEnded := waitErr == nil
	if launchesEnded { // otherwise, a launch may still use the words, which are leaked
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

// destroy destroys the CUDA graph and its executable, as far as they exist. The caller must hold
// g.mu, and the CUDA context must be current.
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
