package nccl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// graph is captured work. NCCL's kernels in it hold on to their communicators, which therefore
// cannot end before the graph is closed.
//
// States: capturing (a stream writes to it); open; closed.
type graph struct {
	device *Device
	// calls are the collectives and messages in the order of capture; each launch gives them new
	// tickets and numbers.
	calls []*captured
	// users are the communicators of calls, each once; recordings are the numbers that they have
	// given the capture, and running are those whose calls take turns.
	users      []*communicator
	recordings map[*communicator]*recording
	running    []*communicator
	// before marks the end of what the stream had to do when the capture began; nil if nothing.
	before *event
	// events are recorded after each launch; points are what captured waits wait for.
	events    []*event
	points    []*point
	functions []cuda.HostFunc
	words     []*word
	// finished marks the end of the last launch.
	finished *event

	mu     ranked.Mutex[graphMu]
	exec   cuda.GraphExec // guarded by mu
	source cuda.Graph     // guarded by mu
	closed bool           // guarded by mu
}

// BeginCapture starts to record work instead of running it.
func (s *stream) BeginCapture() error {
	return s.submit(func() error {
		if s.capture != nil {
			return fmt.Errorf("beginning a capture: %w", driver.ErrCapturing)
		}
		if err := s.leave(); err != nil {
			return err
		}
		before, err := s.mark()
		if err != nil {
			return err
		}
		if err := s.device.cuda.BeginCapture(s.handle, cuda.CaptureRelaxed); err != nil {
			return err
		}
		s.capture = &graph{
			device: s.device, before: before, recordings: map[*communicator]*recording{},
		}
		s.device.capturing.Add(1)
		return nil
	})
}

// mark returns an event behind what the stream has to do, or nil if it is idle. s.mu is held.
func (s *stream) mark() (*event, error) {
	if s.quiet() {
		return nil, nil
	}
	e := s.device.newEvent()
	return e, e.record(s)
}

// EndCapture stops and returns what was recorded.
func (s *stream) EndCapture() (driver.Graph, error) {
	var g *graph
	err := s.submit(func() error {
		if s.capture == nil {
			return fmt.Errorf("ending a capture: %w", driver.ErrNotCapturing)
		}
		g = s.capture
		s.capture = nil
		s.device.capturing.Add(-1)
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

// finish ends CUDA's capture and makes the graph launchable. Until then nobody else has it.
func (g *graph) finish(s *stream) error {
	slices.SortFunc(g.users, func(a, b *communicator) int { return cmp.Compare(a.number, b.number) })
	var err error
	if g.source, err = g.device.cuda.EndCapture(s.handle); err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}
	g.finished = g.device.newEvent()
	if g.exec, err = g.device.cuda.GraphInstantiate(g.source); err != nil {
		return fmt.Errorf("ending a capture: %w", err)
	}
	g.device.mu.Lock()
	defer g.device.mu.Unlock()
	g.device.graphs[g] = struct{}{}
	return nil
}

// Capturing reports whether work is being recorded.
func (s *stream) Capturing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.capture != nil
}

// add notes a call that is in the capture.
func (g *graph) add(k *captured) {
	g.calls = append(g.calls, k)
	if c := k.plan.c; !slices.Contains(g.users, c) {
		g.users = append(g.users, c)
		c.graphs.Add(1)
	}
	takes := k.plan.c.direct.none == "" && !k.plan.Operation.PointToPoint()
	if c := k.plan.c; takes && !slices.Contains(g.running, c) {
		g.running = append(g.running, c)
	}
}

// next returns the place of the next call of a group. Its mu is held.
func (g *graph) next(c *communicator) driver.Recorded {
	r := g.recordings[c]
	if r == nil {
		r = c.recordings.begin(0)
		g.recordings[c] = r
	}
	return r.next()
}

// Launch queues the recorded work on a stream.
func (g *graph) Launch(on driver.Stream) error {
	s, err := g.device.own(on)
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

// launchGraph gives the graph's collectives their tickets and queues the graph. g.mu is held.
func (s *stream) launchGraph(g *graph) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busyAgain()
	if err := s.usable(); err != nil {
		return err
	}
	if s.capture != nil {
		return fmt.Errorf("in a capture: %w", driver.ErrCapturing)
	}
	for _, c := range g.users {
		c.mu.Lock()
		defer c.mu.Unlock()
	}
	for _, c := range g.users {
		if err := c.open(); err != nil {
			return s.refuse(c, err)
		}
	}
	var ends []*end
	for i, k := range g.calls {
		p := k.plan
		if p.Operation.PointToPoint() {
			e, err := k.launch(s)
			if err != nil {
				g.breakOff(i, err)
				return err
			}
			ends = append(ends, e)
		} else if err := p.c.admit(s, p); err != nil {
			g.breakOff(i, err)
			return s.refuse(p.c, err)
		}
	}
	sent, received := divide(ends)
	for _, e := range received {
		e.plan.c.expect(e)
	}
	launched := false
	err := s.device.do(func() (err error) {
		if launched, err = g.queue(s); err == nil {
			err = errors.Join(g.follow(s, sent), s.keepUp())
		}
		return err
	})
	if err != nil {
		for _, e := range received {
			if !launched { // else the stream comes to the wait, which ends with the group
				e.plan.c.unexpect(e)
			}
		}
		g.breakOff(len(g.calls), err)
		for _, c := range g.users {
			s.told(c)
		}
	}
	return err
}

// divide tells Sends from receives.
func divide(ends []*end) (sent, received []*end) {
	for _, e := range ends {
		if e.plan.Operation == driver.Send {
			sent = append(sent, e)
		} else {
			received = append(received, e)
		}
	}
	return sent, received
}

// queue gives the graph to CUDA, and reports whether CUDA has it. s.mu is held.
func (g *graph) queue(s *stream) (launched bool, err error) {
	for _, c := range g.running {
		if err := c.direct.turns.take(c, s, false, g.device.cuda); err != nil {
			return false, err
		}
	}
	err = g.device.cuda.GraphLaunch(g.exec, s.handle)
	return err == nil, err
}

// follow queues what comes behind a launch. s.mu is held.
func (g *graph) follow(s *stream, sent []*end) error {
	for _, c := range g.running {
		if err := c.direct.turns.pass(s, g.device.cuda); err != nil {
			return err
		}
	}
	for _, e := range sent {
		if err := e.plan.c.track(s, e); err != nil {
			return err
		}
	}
	for _, e := range append(g.events, g.finished) {
		if err := e.record(s); err != nil {
			return err
		}
	}
	return nil
}

// breakOff fails the communicators of the first n calls, which others take for launched.
func (g *graph) breakOff(n int, err error) {
	for _, k := range g.calls[:n] {
		_ = k.plan.c.breakOff(k.plan, err)
	}
}

// awaitLaunches waits for the end of the last launch. g.mu is held.
func (g *graph) awaitLaunches() error {
	if g.finished == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closingTime(g.device.cfg.Timeout))
	defer cancel()
	return g.finished.Synchronize(ctx)
}

// Close forgets the work. Launches that are under way finish first.
func (g *graph) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	d := g.device
	ended := g.awaitLaunches()
	err := d.do(func() error {
		errs := []error{ended}
		if g.exec != 0 {
			errs = append(errs, d.cuda.GraphExecDestroy(g.exec))
		}
		if g.source != 0 {
			errs = append(errs, d.cuda.GraphDestroy(g.source))
		}
		return errors.Join(errs...)
	})
	for _, f := range g.functions {
		f.Release()
	}
	if ended == nil {
		d.words.put(g.words...)
	}
	for _, c := range g.users {
		if ended == nil {
			c.releaseGraph(g.calls)
		}
		c.graphs.Done()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.graphs, g)
	return err
}
