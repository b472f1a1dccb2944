package host

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// graph holds the work that a stream has recorded in a capture, for later launches.
//
// A collective has a position in the capture. For example, the second collective of a group in the
// group's first capture has the position {Capture: 1, Call: 2}. When ranks compare their
// collectives, they also compare the positions.
//
// During the capture, mu of the stream guards replays and lastPositions. Later, mu of the graph
// guards them.
type graph struct {
	mu       ranked.Mutex[graphMu]
	replays  []replayFunc // in the order of the recorded work; nil after Close
	isClosed bool         // guarded by mu
	// lastPositions holds the position of the last collective of each group.
	lastPositions map[*communicator]driver.Recorded
}

// replayFunc queues recorded work on a stream.
type replayFunc func(target *stream) error

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
		// it on a worker goroutine instead.
		s.deferred = false
		go s.drain()
	}

	return nil
}

// addReplay records work. The caller must hold the capturing stream's mu.
func (g *graph) addReplay(f replayFunc) { g.replays = append(g.replays, f) }

// recordCall records a call of a group. The caller must hold the capturing stream's mu.
func (g *graph) recordCall(p *plan) {
	if p.Operation.PointToPoint() {
		g.addReplay(p.queueOn) // messages have no position
		return
	}

	position := g.nextPosition(p.comm)
	recorded := *p
	recorded.Call = p.RecordedAs(position) // with a digest that covers the position
	recorded.callMeter = driver.Meter{}    // replays are not metered
	g.addReplay(recorded.queueOn)
}

// nextPosition assigns a position to a group's next collective in the capture, and returns it. The
// caller must hold the capturing stream's mu.
func (g *graph) nextPosition(c *communicator) driver.Recorded {
	position := g.lastPositions[c]
	isFirst := position.Capture == 0
	if isFirst {
		position.Capture = c.captureCount.Add(1)
	}

	position.Call++
	g.lastPositions[c] = position
	return position
}

// queueOn implements replayFunc for a call.
func (p *plan) queueOn(target *stream) error { return p.comm.Launch(target, p) }

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

// Capturing reports whether the stream is between BeginCapture and EndCapture.
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

// Close drops the recorded work, which keeps its buffers reachable until then.
func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isClosed = true
	g.replays = nil
	return nil
}
