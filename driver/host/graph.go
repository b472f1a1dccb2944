package host

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// graph holds recorded work. At each launch, its collectives get new positions in the group's order
// of collectives.
type graph struct {
	mu       ranked.Mutex[graphMu]
	steps    []step // guarded by the stream's mu during the capture, by mu afterwards
	isClosed bool   // guarded by mu
	// lastPositions holds the position of each communicator's last call. It is guarded like steps.
	lastPositions map[*communicator]driver.Recorded
}

// step queues recorded work on a stream.
type step func(on *stream) error

// recordCall records a call. For a collective, it also records the position in the capture, which
// ranks compare when they replay the call.
func (g *graph) recordCall(p *plan) {
	if p.Operation.PointToPoint() {
		g.addStep(p.queueOn)
		return
	}
	position := g.lastPositions[p.comm]
	if position.Capture == 0 {
		position.Capture = p.comm.captureCount.Add(1)
	}
	position.Call++
	g.lastPositions[p.comm] = position
	recorded := *p
	recorded.Call, recorded.callMeter = p.RecordedAs(position), driver.Meter{}
	g.addStep(recorded.queueOn)
}

// addStep records a step. The caller must hold the capturing stream's mu.
func (g *graph) addStep(s step) { g.steps = append(g.steps, s) }

func (p *plan) queueOn(on *stream) error { return p.comm.Launch(on, p) }

// BeginCapture makes the stream record work instead of running it.
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
	if s.deferred { // during the capture, Synchronize cannot run the work
		s.deferred = false
		go s.drain()
	}
	return nil
}

// EndCapture ends the capture and returns the recorded work.
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

// Capturing reports whether work is being recorded.
func (s *stream) Capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

// Launch queues the recorded work on a stream.
func (g *graph) Launch(on driver.Stream) error {
	s, err := hostStream(on)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isClosed {
		return fmt.Errorf("launching a graph: %w", driver.ErrClosed)
	}
	if s.Capturing() { // s.capture would not keep g's buffers reachable
		return fmt.Errorf("launching a graph: %w", driver.ErrCapturing)
	}
	if err := s.replayAll(g.steps); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}
	return nil
}

// replayAll queues recorded steps and returns the first error. After an error, it still queues the
// remaining steps, so that the failed stream passes the error to their events and groups.
func (s *stream) replayAll(steps []step) error {
	var firstErr error
	for _, queueOn := range steps {
		err := queueOn(s)
		if errors.Is(err, driver.ErrClosed) {
			return err
		}
		if firstErr == nil {
			firstErr = err
		}
	}
	return firstErr
}

// Close discards the recorded work.
func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps, g.isClosed = nil, true
	return nil
}
