package symmem

import (
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/ranked"
)

// Graph is work that a stream has recorded between BeginCapture and EndCapture. It can be launched
// repeatedly. The graph pins the buffers that it uses: even after Free, the pool does not reuse
// them until the graph is closed. Close a graph before the groups whose collectives it contains.
type Graph struct {
	rt   *Runtime
	work driver.Graph // nil in a zero Graph

	pools  []*Pool  // pools that the work uses
	groups []*Group // groups whose collectives the work contains

	mu           ranked.Mutex[graphMu]
	pinnedMemory []Memory // guarded by mu
	closed       bool     // guarded by mu
}

// BeginCapture starts recording the stream's work instead of running it. Until EndCapture, groups
// that contain this rank cannot register memory: explicit registrations return ErrCapturing on all
// ranks, and collectives run without registering their buffers. BeginCapture waits for
// registrations in progress on this rank, for at most twice Options.Timeout.
func (s *Stream) BeginCapture() error {
	if err := s.rt.captures.begin(); err != nil {
		return err
	}

	if err := s.beginCapture(); err != nil {
		s.rt.captures.end()
		return err
	}

	return nil
}

func (s *Stream) beginCapture() error {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.capturing.Load() {
		return fmt.Errorf("beginning a capture: %w", ErrCapturing)
	}

	start, err := s.recordNewEvent()
	if err != nil {
		return fmt.Errorf("beginning a capture: %w", err)
	}

	if err := s.queue.BeginCapture(); err != nil {
		return err
	}

	s.captureStart = start
	s.pinned, s.untrackedPools, s.groups = nil, nil, nil
	s.capturing.Store(true)
	return nil
}

// recordEvent returns an event that completes after the queued work or, during a capture, after the
// work that was queued before the capture.
func (s *Stream) recordEvent() (driver.Event, error) {
	s.recording.Lock()
	defer s.recording.Unlock()
	if s.capturing.Load() {
		return s.captureStart, nil
	}

	return s.recordNewEvent()
}

// recordNewEvent must be called with s.recording held, and not during a capture.
func (s *Stream) recordNewEvent() (driver.Event, error) {
	e, err := s.rt.device.NewEvent()
	if err != nil {
		return nil, err
	}

	return e, s.queue.Record(e)
}

// EndCapture ends the capture and returns the recorded graph. An error also ends the capture.
func (s *Stream) EndCapture() (*Graph, error) {
	defer deliverAll(s.rt)
	s.pinning.Lock()
	defer s.pinning.Unlock()
	work, captureErr := s.endQueueCapture()
	g := &Graph{
		rt: s.rt, work: work, pools: s.untrackedPools, groups: s.groups, pinnedMemory: s.pinned,
	}
	s.pinned, s.untrackedPools, s.groups = nil, nil, nil
	if captureErr != nil {
		unpinErr := g.unpin()
		return nil, errors.Join(captureErr, unpinErr)
	}

	for _, m := range g.pinnedMemory {
		if !slices.Contains(g.pools, m.pool) {
			g.pools = append(g.pools, m.pool)
		}
	}

	return g, nil
}

// endQueueCapture ends the capture of the backend's stream. The caller must hold s.pinning.
func (s *Stream) endQueueCapture() (driver.Graph, error) {
	s.recording.Lock()
	defer s.recording.Unlock()
	work, err := s.queue.EndCapture()
	wasCapturing := s.capturing.Load()
	if !wasCapturing {
		return work, err
	}

	s.rt.captures.end()
	s.capturing.Store(false)
	if errors.Is(err, driver.ErrNotCapturing) {
		err = fmt.Errorf("ending a capture: the stream has been closed: %w", ErrClosed)
	}

	return work, err
}

// pin keeps the block of m until the graph of the current capture is closed. Without a capture, it
// returns false.
func (s *Stream) pin(m Memory) (isCapturing bool, err error) {
	s.pinning.Lock()
	defer s.pinning.Unlock()
	if !s.capturing.Load() {
		return false, nil
	}

	for _, pinned := range s.pinned {
		isSameBlock := pinned.pool == m.pool && pinned.handle == m.handle
		if isSameBlock {
			return true, nil
		}
	}

	err = m.pool.uses.pin(m)
	if err == nil {
		s.pinned = append(s.pinned, m)
	}

	return true, err
}

// addUntrackedPool records that a capture, if any, uses memory of p that cannot be pinned.
func (s *Stream) addUntrackedPool(p *Pool) {
	if p == nil || !s.capturing.Load() { // avoids the lock in most calls
		return
	}

	s.pinning.Lock()
	defer s.pinning.Unlock()
	if s.capturing.Load() && !slices.Contains(s.untrackedPools, p) {
		s.untrackedPools = append(s.untrackedPools, p)
	}
}

// recordGroupInCapture records that a capture on s, if any, contains a call of g.
func recordGroupInCapture(s *Stream, g *Group) {
	if !s.capturing.Load() { // avoids the lock in most calls
		return
	}

	s.pinning.Lock()
	defer s.pinning.Unlock()
	if s.capturing.Load() && !slices.Contains(s.groups, g) {
		s.groups = append(s.groups, g)
	}
}

// Launch queues the work on a stream of the same Runtime, which must not be capturing. Launch
// returns ErrClosed if the graph or any of its pools or groups is closed, and ErrSuspended if any
// of its pools or groups is suspended.
func (g *Graph) Launch(s *Stream) error {
	if g == nil || g.work == nil {
		return invalid("launching a nil or zero graph")
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	if s == nil {
		return invalid("launching a graph on a nil stream")
	}

	if s.rt != g.rt {
		return invalid("launching a graph on a stream of another runtime")
	}

	if g.closed {
		return fmt.Errorf("launching a graph: %w", ErrClosed)
	}

	for _, p := range g.pools {
		use, err := enterPools(p, nil)
		if err != nil {
			return fmt.Errorf("launching a graph: %w", err)
		}
		defer use.leave(p, nil) // after the launch
	}

	var refusals []error
	for _, group := range g.groups {
		refusals = append(refusals, group.refusal())
	}

	if err := errors.Join(refusals...); err != nil {
		return fmt.Errorf("launching a graph: %w", err)
	}

	if err := g.work.Launch(s.queue); err != nil {
		return awaitStreamCause(err)
	}

	return nil
}

// Close discards the graph. All launches must have completed. A second Close does nothing.
//
// Closing a graph can return buffers to a pool, so all ranks that share the pool must close the
// graph at the same point of the program. Otherwise, later buffers get different offsets.
func (g *Graph) Close() error {
	if g == nil || g.work == nil {
		return invalid("closing a nil or zero graph")
	}

	defer deliverAll(g.rt)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}

	g.closed = true
	closeErr := g.work.Close()
	unpinErr := g.unpin()
	return errors.Join(closeErr, unpinErr)
}

// unpin must be called with g.mu held, or before the graph is published.
func (g *Graph) unpin() error {
	var errs []error
	for _, m := range g.pinnedMemory {
		errs = append(errs, m.pool.uses.unpin(m))
	}

	g.pinnedMemory = nil
	return errors.Join(errs...)
}
