package host

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/ranked"
)

// graph holds the work that a stream recorded in a capture. Its fields are guarded by the stream's
// mu during the capture, and by graph.mu afterwards.
type graph struct {
	mu            ranked.Mutex[graphMu]
	replays       []replayFunc
	isClosed      bool
	lastPositions map[*communicator]driver.Recorded // of each group's last collective
}

// replayFunc queues one item of recorded work on a stream.
type replayFunc func(target *stream) error

// BeginCapture makes the stream record new work instead of running it. Earlier work still runs.
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
	s.device.capturingCount.Add(1)
	if s.deferred { // Synchronize would run the queue, but fails during a capture
		s.deferred = false
		go s.drain()
	}

	return nil
}

func (s *stream) Capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

// recordCall records a call. The caller must hold the capturing stream's mu.
func (g *graph) recordCall(p *plan) {
	if p.isMessage {
		g.addReplay(p.launchOn)
		return
	}

	collective := *p
	collective.Call = p.RecordedAs(g.nextPosition(p.comm))
	collective.callMeter = driver.Meter{} // replays are not metered
	g.addReplay(collective.launchOn)
}

func (p *plan) launchOn(target *stream) error { return p.comm.Launch(target, p) }

// The caller must hold the capturing stream's mu.
func (g *graph) addReplay(f replayFunc) { g.replays = append(g.replays, f) }

// nextPosition returns the position of the group's next collective: {Capture: 1, Call: 2} for the
// second collective in the first capture. Ranks compare positions to detect different calls. The
// caller must hold the capturing stream's mu.
func (g *graph) nextPosition(c *communicator) driver.Recorded {
	position, hasCalls := g.lastPositions[c]
	if !hasCalls {
		position.Capture = c.captureCount.Add(1)
	}

	position.Call++
	g.lastPositions[c] = position
	return position
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
	s.device.capturingCount.Add(-1)
	return g, nil
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

	if s.Capturing() { // the new graph would have no references to the buffers of g
		return fmt.Errorf("launching a graph: %w", driver.ErrCapturing)
	}

	if err := s.replayAll(g.replays); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}

	return nil
}

// replayAll queues recorded work and returns the first error. It stops at ErrClosed. After other
// errors, it still queues the work, which passes the stream's error to events and groups.
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

// Close drops the recorded work and its references to buffers.
func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isClosed = true
	g.replays = nil
	return nil
}
