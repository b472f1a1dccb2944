package host

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// graph holds the work that a stream has recorded in a capture, for later launches.
//
// During the capture, mu of the stream guards replays and lastPositions. Later, mu of the graph
// guards them.
type graph struct {
	mu       ranked.Mutex[graphMu]
	replays  []replayFunc // in the order of the recorded work; nil after Close
	isClosed bool         // guarded by mu
	// lastPositions holds the position in the capture of the last collective of each group.
	lastPositions map[*communicator]driver.Recorded
}

// replayFunc queues recorded work on a stream.
type replayFunc func(target *stream) error

// recordCall records a call of a group. Ranks compare collectives when they replay them, and the
// call's digest therefore covers its position in the capture. The caller must hold the capturing
// stream's mu.
func (g *graph) recordCall(p *plan) {
	if p.Operation.PointToPoint() {
		g.addReplay(p.queueOn) // messages have no position
		return
	}

	position := g.lastPositions[p.comm]
	if position.Capture == 0 { // this is the first collective of the group
		position.Capture = p.comm.captureCount.Add(1)
	}

	position.Call++
	g.lastPositions[p.comm] = position
	recorded := *p
	recorded.Call = p.RecordedAs(position)
	recorded.callMeter = driver.Meter{} // replays are not metered
	g.addReplay(recorded.queueOn)
}

// addReplay records work. The caller must hold the capturing stream's mu.
func (g *graph) addReplay(f replayFunc) { g.replays = append(g.replays, f) }

func (p *plan) queueOn(target *stream) error { return p.comm.Launch(target, p) }

// BeginCapture makes the stream record new work instead of running it. Work that is already queued
// still runs.
func (s *stream) BeginCapture() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkOpen(); err != nil {
		return err
	}

	if s.capture != nil {
		return fmt.Errorf("beginning a capture: %w", driver.ErrCapturing)
	}

	s.capture = &graph{lastPositions: map[*communicator]driver.Recorded{}}
	s.device.captureCount.Add(1)
	if s.deferred {
		// The queued work would run in the next Synchronize, which is not allowed in a capture. Run
		// it on a worker instead.
		s.deferred = false
		go s.drain()
	}

	return nil
}

// EndCapture returns the recorded work. The stream runs new work again.
func (s *stream) EndCapture() (driver.Graph, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.capture == nil {
		return nil, fmt.Errorf("ending a capture: %w", driver.ErrNotCapturing)
	}

	g := s.capture
	s.capture = nil
	s.device.captureCount.Add(-1)
	return g, nil
}

func (s *stream) Capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

// Launch queues the recorded work on a stream, which must not be capturing.
func (g *graph) Launch(target driver.Stream) error {
	s, err := hostStream(target)
	if err != nil {
		return err
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isClosed {
		return fmt.Errorf("launching a graph: %w", driver.ErrClosed)
	}

	if s.Capturing() {
		// The graph that s captures would not keep the buffers of g's work reachable.
		return fmt.Errorf("launching a graph: %w", driver.ErrCapturing)
	}

	if err := s.replayAll(g.replays); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}

	return nil
}

// replayAll queues recorded work and returns the first error. After an error, it still queues the
// rest, so that the failed stream passes the error to its events and groups. It stops only if the
// stream or a group is closed.
func (s *stream) replayAll(replays []replayFunc) error {
	var firstErr error
	for _, replay := range replays {
		err := replay(s)
		if errors.Is(err, driver.ErrClosed) {
			return err
		}

		if firstErr == nil {
			firstErr = err
		}
	}

	return firstErr
}

func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isClosed = true
	g.replays = nil // the recorded work keeps buffers reachable
	return nil
}
