package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Graph is captured work. It must be closed before the communicators of its calls.
type Graph struct {
	streams       *Streams
	Calls         Calls    // calls of groups (communicators)
	priorWork     *Event   // recorded before the capture, or nil
	endEvents     []*Event // recorded after each launch
	awaitedPoints []*Point // the graph waits for these
	hostFuncs     []cuda.HostFunc
	words         []*gpu.Word
	// HasOtherWaits is set if the graph may wait for anything except calls of groups on its stream.
	HasOtherWaits bool
	lastLaunchEnd *Event

	mu         ranked.Mutex[graphMu]
	executable cuda.GraphExec // guarded by mu
	cudaGraph  cuda.Graph     // guarded by mu
	closed     bool           // guarded by mu
	// isDestroyed is set once Close has destroyed the graph; guarded by mu.
	isDestroyed bool
}

// Calls holds the group calls in a graph.
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

// addHostFunc makes each launch wait until run has written value to done. Launches can share the
// word, because they do not overlap.
func (g *Graph) addHostFunc(stream cuda.Stream, run func(done *gpu.Word, value uint32)) error {
	device := g.streams.GPU
	word, err := device.Words.Take(device.CUDA)
	if err != nil {
		return err
	}
	g.words, g.HasOtherWaits = append(g.words, word), true
	f := cuda.NewHostFunc(func() {
		word.Set(0)
		go run(word, 1)
	})
	g.hostFuncs = append(g.hostFuncs, f)
	if err := device.CUDA.LaunchHostFunc(stream, f); err != nil {
		return err
	}
	return device.CUDA.StreamWaitValue(stream, word.Address(), 1, cuda.WaitEqual)
}

func (g *Graph) endCapture(s *Stream) error {
	streams := g.streams
	var err error
	if g.cudaGraph, err = streams.GPU.CUDA.EndCapture(s.CUDA); err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}
	g.lastLaunchEnd = streams.NewEvent()
	if g.executable, err = streams.GPU.CUDA.GraphInstantiate(g.cudaGraph); err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}
	streams.addOpenGraph(g)
	return nil
}

// Launch queues the recorded work on a stream.
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

// launchLocked requires g.mu.
func (g *Graph) launchLocked(s *Stream) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.ClearWaitedFor()
	if err := s.CheckOpen(); err != nil {
		return err
	}
	if s.Capture != nil {
		return fmt.Errorf("the stream is capturing: %w", driver.ErrCapturing)
	}
	if s.isAdopted {
		if captured, err := s.IsCapturing(); captured || err != nil {
			return cmp.Or(err, fmt.Errorf("another library is capturing the stream: %w",
				driver.ErrCapturing))
		}
	}
	if g.HasOtherWaits || s.isAdopted {
		if err := s.RecordGroups(nil); err != nil {
			return err
		}
	}
	return g.Calls.Launch(g, s)
}

// Queue launches the CUDA graph. The caller must hold the locks of the graph and the stream, and
// the CUDA context must be current.
func (g *Graph) Queue(s *Stream) error {
	return g.streams.GPU.CUDA.GraphLaunch(g.executable, s.CUDA)
}

// RecordEvents records the graph's events after a launch, under the conditions of Queue.
func (g *Graph) RecordEvents(s *Stream) error {
	for _, e := range g.endEvents {
		if err := e.Record(s.CUDA); err != nil {
			return err
		}
	}
	return g.lastLaunchEnd.Record(s.CUDA)
}

// awaitLaunches requires g.mu.
func (g *Graph) awaitLaunches() error {
	if g.lastLaunchEnd == nil {
		return nil
	}
	limit := gpu.CloseTimeout(g.streams.GPU.Timeout)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return g.lastLaunchEnd.Synchronize(ctx)
}

// Close waits, for a limited time, for unfinished launches, and destroys the graph. If CUDA fails
// to destroy it, the graph keeps what its calls use, because NCCL does, too. A later Close, such as
// that of the device, tries again.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isDestroyed {
		return nil
	}
	g.closed = true
	streams := g.streams
	waitErr := g.awaitLaunches()
	if err := streams.GPU.Do(g.destroy); err != nil {
		streams.addOpenGraph(g) // after a failed EndCapture, it is not there yet
		return errors.Join(waitErr, err)
	}
	g.isDestroyed = true
	for _, f := range g.hostFuncs {
		f.Release()
	}
	if waitErr == nil {
		streams.GPU.Words.Put(g.words...)
	}
	g.Calls.Close(waitErr == nil)
	streams.mu.Lock()
	defer streams.mu.Unlock()
	delete(streams.graphs, g)
	return waitErr
}

// destroy requires g.mu and a current CUDA context.
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
