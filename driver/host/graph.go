package host

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

type graph struct {
	mu            ranked.Mutex[graphMu]
	replays       []replayFunc                      // guarded by mu or, in a capture, the stream's mu
	isClosed      bool                              // guarded by mu
	lastPositions map[*communicator]driver.Recorded // guarded like replays
}

// replayFunc queues recorded work on a stream.
type replayFunc func(target *stream) error

// For a collective, recordCall stores its position in the capture, which ranks compare when they
// replay the call.
func (g *graph) recordCall(p *plan) {
	if p.Operation.PointToPoint() {
		g.addReplay(p.queueOn)
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
	g.addReplay(recorded.queueOn)
}

// The caller of addReplay must hold the capturing stream's mu.
func (g *graph) addReplay(s replayFunc) { g.replays = append(g.replays, s) }

func (p *plan) queueOn(target *stream) error { return p.comm.Launch(target, p) }

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
	if s.deferred { // Synchronize cannot run the work during the capture
		s.deferred = false
		go s.drain()
	}
	return nil
}

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
	if s.Capturing() { // s.capture would not keep g's buffers reachable
		return fmt.Errorf("launching a graph: %w", driver.ErrCapturing)
	}
	if err := s.replayAll(g.replays); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}
	return nil
}

// replayAll queues recorded work and returns the first error. After an error, it queues the rest,
// so that the failed stream passes the error to its events and groups.
func (s *stream) replayAll(replays []replayFunc) error {
	var firstErr error
	for _, queueOn := range replays {
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

func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.replays, g.isClosed = nil, true
	return nil
}
