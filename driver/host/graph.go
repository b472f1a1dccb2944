package host

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// graph holds recorded work. Its collectives get their positions in the group's order at each
// launch, so that replayed and eager calls run in launch order.
type graph struct {
	mu     ranked.Mutex[graphMu]
	steps  []step // guarded by the stream's mu during the capture, by mu afterwards
	closed bool   // guarded by mu
	// latestCalls holds the position of each communicator's last call; guarded like steps.
	latestCalls map[*communicator]driver.Recorded
}

// step queues one recorded piece of work on a stream.
type step func(on *stream) error

// record records a call and, for a collective, its position in the capture, which ranks compare
// when they replay the call.
func (g *graph) record(p *plan) {
	if p.Operation.PointToPoint() {
		g.add(p.queue)
		return
	}
	position := g.latestCalls[p.comm]
	if position.Capture == 0 {
		position.Capture = p.comm.captures.Add(1)
	}
	position.Call++
	g.latestCalls[p.comm] = position
	recorded := *p
	recorded.Call, recorded.meter = p.RecordedAs(position), driver.Meter{}
	g.add(recorded.queue)
}

// add records a step. The caller must hold the capturing stream's mu.
func (g *graph) add(s step) { g.steps = append(g.steps, s) }

func (p *plan) queue(on *stream) error { return p.comm.Launch(on, p) }

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
	s.capture = &graph{latestCalls: map[*communicator]driver.Recorded{}}
	s.device.capturing.Add(1)
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
	s.device.capturing.Add(-1)
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
	if g.closed {
		return fmt.Errorf("launching a graph: %w", driver.ErrClosed)
	}
	if s.Capturing() { // a graph captured on s would not keep g's buffers alive
		return fmt.Errorf("launching a graph: %w", driver.ErrCapturing)
	}
	if err := s.replayAll(g.steps); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}
	return nil
}

// replayAll queues recorded steps and returns the first error. After an error, it still queues the
// remaining steps, because the failed stream marks their events with the error and makes their
// groups fail.
func (s *stream) replayAll(steps []step) error {
	var first error
	for _, queue := range steps {
		err := queue(s)
		if errors.Is(err, driver.ErrClosed) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// Close discards the recorded work.
func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps, g.closed = nil, true
	return nil
}
