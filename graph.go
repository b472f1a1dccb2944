package symmem

import (
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Graph is captured work that can be launched again and again.
//
// States: capturing (between Stream.BeginCapture and Stream.EndCapture), ready, closed. Buffers
// that the capture used are pinned until Close: freed meanwhile, they come back to their pool only
// then, and Pool.Trim keeps their segments. Group.Close comes after Close: the windows of the group
// go with it.
type Graph struct {
	rt   *Runtime
	work driver.Graph

	pools []*Pool // of the pins, each once

	mu     ranked.Mutex[graphMu]
	pins   []Memory // guarded by mu
	closed bool     // guarded by mu
}

// BeginCapture starts to record the stream's work instead of running it. Until EndCapture nothing
// can be registered with groups of this rank: registrations return ErrCapturing on all ranks of the
// group and leave the capture valid. Calls on memory that is not registered yet take a path that
// needs no windows.
//
// It waits for registrations in progress on this rank, and returns a TimeoutError if they take more
// than twice the timeout.
func (s *Stream) BeginCapture() error {
	err := s.rt.captures.begin()
	if err != nil {
		return err
	}
	if err = s.beginCapture(); err != nil {
		s.rt.captures.end()
	}
	return err
}

// beginCapture is BeginCapture of a capture that is counted already.
func (s *Stream) beginCapture() error {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.capturing.Load() {
		return fmt.Errorf("beginning a capture: %w", ErrCapturing)
	}
	begun, err := s.recordNewEvent()
	if err != nil {
		return fmt.Errorf("beginning a capture: %w", err)
	}
	if err := s.queue.BeginCapture(); err != nil {
		return err
	}
	s.captureStart, s.held = begun, nil
	s.capturing.Store(true)
	return nil
}

// recordEvent records an event after the work that is queued on the stream. While the stream
// captures that is the event of the begin of the capture: captured work uses pinned buffers.
func (s *Stream) recordEvent() (driver.Event, error) {
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.capturing.Load() {
		return s.captureStart, nil
	}
	return s.recordNewEvent()
}

// recordNewEvent is recordEvent of a stream that does not capture. s.recording is held.
func (s *Stream) recordNewEvent() (driver.Event, error) {
	e, err := s.rt.device.NewEvent()
	if err != nil {
		return nil, err
	}
	return e, s.queue.Record(e)
}

// EndCapture stops recording. Where it returns an error the capture has ended, too, and nothing is
// left of it.
func (s *Stream) EndCapture() (*Graph, error) {
	defer deliverAll(s.rt)
	s.pinning.Lock()
	defer s.pinning.Unlock()
	work, err := s.stopRecording()
	g := &Graph{rt: s.rt, work: work, pins: s.held}
	s.held = nil
	if err != nil {
		return nil, errors.Join(err, g.unpin())
	}
	for _, m := range g.pins {
		if !slices.Contains(g.pools, m.pool) {
			g.pools = append(g.pools, m.pool)
		}
	}
	return g, nil
}

// stopRecording ends the capture of the backend. s.pinning is held.
func (s *Stream) stopRecording() (driver.Graph, error) {
	s.recording.Lock()
	defer s.recording.Unlock()
	work, err := s.queue.EndCapture()
	if s.capturing.Load() {
		s.rt.captures.end()
		s.capturing.Store(false)
		if errors.Is(err, driver.ErrNotCapturing) {
			err = fmt.Errorf("ending a capture: the stream has ended: %w", ErrClosed)
		}
	}
	return work, err
}

// pinned keeps a buffer for the graph that is being captured, once. It reports whether the stream
// still captures.
func (s *Stream) pinned(m Memory) (bool, error) {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	if !s.capturing.Load() {
		return false, nil
	}
	for _, have := range s.held {
		if have.pool == m.pool && have.handle == m.handle {
			return true, nil
		}
	}
	err := m.pool.pin(m)
	if err == nil {
		s.held = append(s.held, m)
	}
	return true, err
}

// Launch queues the captured work on a stream of the same Runtime. It returns ErrClosed where the
// graph, or a pool that it uses, is closed, and ErrCapturing, with the capture still good, where
// the stream is being captured, also by another library.
func (g *Graph) Launch(s *Stream) error {
	if g == nil || g.work == nil {
		return invalid("launching no graph")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s == nil {
		return invalid("launching a graph on no stream")
	}
	if s.rt != g.rt {
		return invalid("launching a graph on a stream of another runtime")
	}
	if g.closed {
		return fmt.Errorf("launching a graph: %w", ErrClosed)
	}
	for _, p := range g.pools {
		in, err := enter(p, nil)
		if err != nil {
			return fmt.Errorf("launching a graph over a pool that is closed: %w", err)
		}
		defer in.leave(p, nil)
	}
	if err := g.work.Launch(s.queue); err != nil {
		return awaitStreamCause(err)
	}
	return nil
}

// Close drops the recorded work and unpins its buffers, without waiting: no launch may still be
// queued. Buffers that were freed meanwhile return to their pools, which is an event of the pools'
// histories, so all ranks of a domain must close graphs at the same points. A second Close does
// nothing.
func (g *Graph) Close() error {
	if g == nil || g.work == nil {
		return invalid("closing no graph")
	}
	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	return errors.Join(g.work.Close(), g.unpin())
}

// unpin removes the pins. g.mu is held, or no other goroutine has the graph.
func (g *Graph) unpin() error {
	var errs []error
	for _, m := range g.pins {
		errs = append(errs, m.pool.unpin(m))
	}
	g.pins = nil
	return errors.Join(errs...)
}
