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

// Graph is captured work. NCCL's kernels in it hold on to their communicators, which therefore
// cannot end before the graph is closed.
//
// States: capturing (a stream writes to it); open; closed.
type Graph struct {
	streams *Streams
	// Calls holds the calls of groups in the graph; each launch gives them new tickets and numbers.
	Calls Calls
	// before marks the end of what the stream had to do when the capture began; nil if nothing.
	before *Event
	// events are recorded after each launch. points are the points that captured waits wait for.
	events    []*Event
	points    []*Point
	functions []cuda.HostFunc
	words     []*gpu.Word
	// Waits reports whether it has what may wait for something else: see Stream.RecordGroups.
	Waits bool
	// finished marks the end of the last launch.
	finished *Event

	mu     ranked.Mutex[graphMu]
	exec   cuda.GraphExec // guarded by mu
	source cuda.Graph     // guarded by mu
	closed bool           // guarded by mu
}

// Calls holds the calls of groups in a graph.
type Calls interface {
	// Record puts a call of a group into the capture of a stream. The locks of stream and group are
	// held.
	Record(on *Stream, plan driver.Plan) error
	// Launch gives the calls of the graph the numbers of a launch, and queues it, by Graph.Queue and
	// Graph.Follow. The locks of graph and stream are held.
	Launch(g *Graph, on *Stream) error
	// Close takes back what the calls have. Ended reports whether all launches have ended.
	Close(ended bool)
}

// BeginCapture starts to record work instead of running it.
func (s *Stream) BeginCapture() error {
	return s.submit(func() error {
		if s.Capture != nil {
			return fmt.Errorf("beginning a capture: %w", driver.ErrCapturing)
		}
		if err := s.RecordGroups(nil); err != nil {
			return err
		}
		before, err := s.captureQueued()
		if err != nil {
			return err
		}
		if err := s.gpu.CUDA.BeginCapture(s.CUDA, cuda.CaptureRelaxed); err != nil {
			return err
		}
		s.Capture = &Graph{streams: s.streams, before: before, Calls: s.streams.NewCalls()}
		s.streams.Capturing.Add(1)
		return nil
	})
}

// captureQueued returns an event after the work queued on the stream, or nil if it is idle. s.Mu is
// held.
func (s *Stream) captureQueued() (*Event, error) {
	if s.IdleLocked() {
		return nil, nil
	}
	e := s.streams.NewEvent()
	return e, e.Record(s.CUDA)
}

// EndCapture stops and returns what was recorded.
func (s *Stream) EndCapture() (driver.Graph, error) {
	var g *Graph
	err := s.submit(func() error {
		if s.Capture == nil {
			return fmt.Errorf("ending a capture: %w", driver.ErrNotCapturing)
		}
		g = s.Capture
		s.Capture = nil
		s.streams.Capturing.Add(-1)
		return g.finish(s)
	})
	if err != nil {
		if g != nil {
			err = errors.Join(err, g.Close())
		}
		return nil, err
	}
	return g, nil
}

// finish ends CUDA's capture and instantiates the graph. Until then no other goroutine has it.
func (g *Graph) finish(s *Stream) error {
	d := g.streams
	var err error
	if g.source, err = d.GPU.CUDA.EndCapture(s.CUDA); err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}
	g.finished = d.NewEvent()
	if g.exec, err = d.GPU.CUDA.GraphInstantiate(g.source); err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.graphs == nil {
		d.graphs = map[*Graph]struct{}{}
	}
	d.graphs[g] = struct{}{}
	return nil
}

// Capturing reports whether work is being recorded.
func (s *Stream) Capturing() bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Capture != nil
}

// Launch queues the recorded work on a stream.
func (g *Graph) Launch(on driver.Stream) error {
	s, err := g.streams.Own(on)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("launching a graph: %w", driver.ErrClosed)
	}
	if err := s.launchGraph(g); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}
	return nil
}

// launchGraph gives the graph's calls their numbers and queues the graph. g.mu is held.
func (s *Stream) launchGraph(g *Graph) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.BusyAgain()
	if err := s.Usable(); err != nil {
		return err
	}
	if s.Capture != nil {
		return fmt.Errorf("in a capture: %w", driver.ErrCapturing)
	}
	if s.adopted {
		if captured, err := s.Captured(); captured || err != nil {
			return cmp.Or(err, fmt.Errorf("in a capture of another library: %w", driver.ErrCapturing))
		}
	}
	if g.Waits || s.adopted {
		if err := s.RecordGroups(nil); err != nil {
			return err
		}
	}
	return g.Calls.Launch(g, s)
}

// Queue gives the graph to CUDA. The locks of graph and stream are held. It is called on a thread
// of the context.
func (g *Graph) Queue(s *Stream) error { return g.streams.GPU.CUDA.GraphLaunch(g.exec, s.CUDA) }

// Follow queues the events that come behind a launch. The locks of graph and stream are held. It is
// called on a thread of the context.
func (g *Graph) Follow(s *Stream) error {
	for _, e := range append(g.events, g.finished) {
		if err := e.Record(s.CUDA); err != nil {
			return err
		}
	}
	return nil
}

// awaitLaunches waits for the end of the last launch. g.mu is held.
func (g *Graph) awaitLaunches() error {
	if g.finished == nil {
		return nil
	}
	limit := gpu.ClosingTime(g.streams.GPU.Timeout)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return g.finished.Synchronize(ctx)
}

// Close forgets the work. Launches that are under way finish first.
func (g *Graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	d := g.streams
	ended := g.awaitLaunches()
	err := d.GPU.Do(func() error {
		errs := []error{ended}
		if g.exec != 0 {
			errs = append(errs, d.GPU.CUDA.GraphExecDestroy(g.exec))
		}
		if g.source != 0 {
			errs = append(errs, d.GPU.CUDA.GraphDestroy(g.source))
		}
		return errors.Join(errs...)
	})
	for _, f := range g.functions {
		f.Release()
	}
	if ended == nil {
		d.GPU.Words.Put(g.words...)
	}
	g.Calls.Close(ended == nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.graphs, g)
	return err
}
