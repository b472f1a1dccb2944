package nccl

import (
	"cmp"
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/cuda"
)

// Launch queues a prepared collective on a stream. With the check on it first waits until every
// rank has come to the same call: what differs never reaches NCCL.
//
// Between two launches the libraries fill a processor's caches with code of theirs, so that every
// function on this path costs some ten nanoseconds: hence few do what more would show better.
func (c *communicator) Launch(on driver.Stream, p driver.Plan) error {
	s, err := c.device.streams.Own(on)
	if err != nil {
		return err
	}
	prepared, ok := p.(*plan)
	if !ok || prepared.c != c {
		return errForeignPlan
	}
	if !prepared.ready.Prepared() || c.device.gpu.Adopted.Load() {
		return c.launch(s, prepared)
	}
	s.Mu.Lock()
	s.BusyAgain() // before the ticket: a group that fails then reports its fault to the stream
	c.mu.Lock()
	if s.Closed() || s.Capture != nil || c.closing.Load() || c.check.Load() ||
		c.busy.Windows.Load() && prepared.Path != driver.PathWindow ||
		c.direct.unavailable == "" && c.direct.order.Latest() != s {
		c.mu.Unlock()
		s.Mu.Unlock()
		return c.launch(s, prepared)
	}
	// The short way through launch.
	if ticket, ok := c.plane.TrySubmit(); ok {
		c.note(s, prepared, ticket)
		c.direct.order.ByNCCL = true
		if err = prepared.ready.On(s.CUDA); err != nil {
			err = s.Refuse(c.group, c.faults.failUnqueued(&prepared.Call, err))
		}
	} else {
		err = s.Refuse(c.group, c.faults.afterPeerFault(&prepared.Call))
	}
	c.mu.Unlock()
	s.Mu.Unlock()
	return err
}

// launch is Launch of any plan of the group, in any state.
func (c *communicator) launch(s *stream.Stream, p *plan) error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.BusyAgain()
	if s.Adopted() || p.Operation == driver.Recv {
		if err := c.recordOtherGroups(s, p); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Closed() || s.Capture != nil || c.closing.Load() || p.Operation.PointToPoint() {
		return c.launchOtherwise(s, p)
	}
	if p.Path != driver.PathWindow && c.busy.Windows.Load() && c.busy.Idle(s) {
		c.busy.Windows.Store(false) // else this call would pass for one that does not hear of an abort
	}
	var err error
	if c.recorder.replayed.Load() {
		err = c.faults.checkKernels()
	}
	if err == nil {
		err = c.admit(s, p)
	}
	if err == nil {
		err = c.call(p, s)
	}
	if err != nil {
		return s.Refuse(c.group, err)
	}
	return nil
}

// recordOtherGroups has the other groups record their events on a stream before what may wait for
// something that they have nothing to do with: a Recv, or work of the owner of an adopted stream.
// s.Mu is held.
func (c *communicator) recordOtherGroups(s *stream.Stream, p *plan) error {
	switch {
	case s.Capture != nil || s.Closed():
		return nil
	case p.Operation.PointToPoint():
		return s.RecordGroups(nil)
	default:
		return s.RecordGroups(c.group)
	}
}

var errForeignPlan = errors.New("launching a collective: the plan is of another group")

// launchOtherwise records a call into the stream's capture, transfers a message, or refuses either.
// s.Mu and c.mu are held.
func (c *communicator) launchOtherwise(s *stream.Stream, p *plan) error {
	if err := s.Usable(); err != nil {
		return err
	}
	if s.Capture != nil {
		return s.Capture.Calls.Record(s, p)
	}
	if err := c.open(); err != nil {
		return s.Refuse(c.group, err)
	}
	return c.messages.Transfer(s, p.message())
}

// open refuses new work once Close has begun. c.mu is held, so Close sees all work that was let in.
func (c *communicator) open() error {
	if !c.closing.Load() {
		return nil
	}
	if cause := c.plane.Cause(); cause != nil {
		return cause
	}
	return fmt.Errorf("launching on group %s: %w", c.cfg.Name(), driver.ErrClosed)
}

// admit gives a collective its ticket and, with the check on, compares it across ranks. s.Mu and
// c.mu are held. A peer may have failed over this very call: Compare finds that out.
// A call that is not compared is refused then: NCCL may connect to the ranks, and wait for one that
// is gone forever.
func (c *communicator) admit(s *stream.Stream, p *plan) error {
	check := c.check.Load()
	var ticket uint64
	if check {
		ticket = c.plane.Submit()
		c.comparer.announce(&p.Call, ticket)
	} else {
		var ok bool
		if ticket, ok = c.plane.TrySubmit(); !ok {
			return c.faults.afterPeerFault(&p.Call)
		}
	}
	c.note(s, p, ticket)
	if check {
		return c.comparer.compare(&p.Call, ticket, p.kernel != nil)
	}
	return nil
}

// note remembers a collective that is about to be queued on a stream. s.Mu and c.mu are held.
func (c *communicator) note(s *stream.Stream, p *plan, ticket uint64) {
	c.history.note(&p.Call, ticket, p.meetings)
	if !c.busy.IsNoted(s) {
		c.busy.Note(s)
	}
	if p.byNCCL() {
		under := &c.busy.Plain
		if p.Path == driver.PathWindow {
			under = &c.busy.Windows
		}
		under.Store(true)
	}
	s.Note(c.group, ticket, p.Operation)
}

// call gives a collective to NCCL, or queues kernels. s.Mu and c.mu are held.
func (c *communicator) call(p *plan, s *stream.Stream) error {
	if p.nothing() {
		return nil
	}
	err := c.device.gpu.With(func(gpu *cuda.Driver) error {
		return errors.Join(c.run(p, s, gpu), s.RecordQueued())
	})
	if err != nil {
		return c.faults.failUnqueued(&p.Call, err)
	}
	return nil
}

// run queues a call after those of the group on other streams and in replays, through a driver that
// is in the device's context. s.Mu and c.mu are held.
func (c *communicator) run(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	switch {
	case c.direct.unavailable != "":
		return p.queue(s, gpu) // NCCL keeps the order
	case s.Recording:
		return c.queueRecorded(p, s, gpu)
	case s.Capture != nil:
		return p.queue(s, gpu) // the graph takes its turn when it is launched
	}
	t := &c.direct.order
	err := t.Begin(c.group, s, p.ordered(), gpu)
	if err == nil {
		err = p.queue(s, gpu)
	}
	if err == nil {
		err = t.End(s, gpu)
	}
	return err
}

// Record puts a collective into a capture of the stream's owner.
func (c *communicator) Record(on driver.Stream, p driver.Plan) error {
	s, err := c.device.streams.Own(on)
	if err != nil {
		return err
	}
	prepared, ok := p.(*plan)
	if !ok || prepared.c != c {
		return errors.New("recording a collective: the plan is of another group")
	}
	if prepared.Operation.PointToPoint() {
		return fmt.Errorf("recording %v in a capture of another library: %w", prepared.Operation,
			driver.ErrUnsupported)
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	err = cmp.Or(c.recorder.noteReplays(), errors.Join(s.Usable(), c.Cause(), c.open()))
	if err != nil {
		return err
	}
	recording, err := c.recorder.recordingOf(s)
	if err != nil {
		return err
	}
	prepared = prepared.recordedAs(recording.Next())
	if err := c.recorder.compare(&prepared.Call, prepared.kernel != nil); err != nil {
		return err
	}
	if err := c.device.gpu.Do(func() error {
		return c.recorder.countUses(s, prepared.useCounts(), prepared.Path, prepared.byNCCL())
	}); err != nil {
		return fmt.Errorf("keeping the memory of a graph of another library: %w", err)
	}
	c.history.note(&prepared.Call, 0, prepared.meetings)
	s.AddGroup(c.group)
	s.Recording, c.recorder.current = true, recording
	defer func() { s.Recording, c.recorder.current = false, nil }()
	return c.call(prepared, s)
}

// queueRecorded puts a call into a capture of the stream's owner, behind those of the group that
// are there. s.Mu and c.mu are held.
func (c *communicator) queueRecorded(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	return c.recorder.current.Launch(&c.direct.order, s, c.device.streams, func() error {
		return p.queue(s, gpu)
	})
}

// Offer resolves nothing yet: each path is looked at when it is asked for.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, c: c, count: call.Count}
}
