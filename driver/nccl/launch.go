package nccl

import (
	"context"
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
	// What launch comes to then, with less on the way.
	if ticket, ok := c.plane.TrySubmit(); ok {
		c.note(s, prepared, ticket)
		c.direct.order.ByNCCL = true
		if err = prepared.ready.On(s.CUDA); err != nil {
			err = s.Refuse(c.group, c.failUnqueued(&prepared.Call, err))
		}
	} else {
		err = s.Refuse(c.group, c.afterPeerFault(&prepared.Call))
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
	if p.Path != driver.PathWindow && c.busy.Windows.Load() && c.busy.NoneUnderWay(s) {
		c.busy.Windows.Store(false) // else this call would pass for one that does not hear of an abort
	}
	var err error
	if c.replayed.Load() {
		err = c.checkKernels()
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
// c.mu are held. A peer that has failed may have done so over this very call, which Compare tells.
// A call that is not compared is refused then: NCCL may connect to the ranks, and wait for one that
// is gone forever.
func (c *communicator) admit(s *stream.Stream, p *plan) error {
	check := c.check.Load()
	var ticket uint64
	if check {
		ticket = c.plane.Submit()
	} else {
		var ok bool
		if ticket, ok = c.plane.TrySubmit(); !ok {
			return c.afterPeerFault(&p.Call)
		}
	}
	c.note(s, p, ticket)
	if check {
		return c.compare(p, ticket)
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

// compare makes sure that all ranks launch the same call. Kernels of our own do that
// themselves, but a rank whose call is another one may take another path, so all show what they
// launch. Ranks without shared memory cannot show it, and compare as on the other paths.
func (c *communicator) compare(p *plan, ticket uint64) error {
	if c.direct.announcements != nil {
		c.direct.announcements.Announce(ticket, p.Digest)
		if p.kernel != nil {
			return c.goesOn(p, ticket)
		}
	}
	return c.compareNow(p, ticket)
}

// compareNow is compare before the call reaches the GPU.
func (c *communicator) compareNow(p *plan, ticket uint64) error {
	c.comparing.Store(&p.Call)
	defer c.comparing.Store(nil)
	err := c.plane.Compare(ticket, &p.Call)
	if err == nil && p.Splits != nil {
		err = c.compareSplits(&p.Call, ticket)
	}
	return err
}

// compareSplits compares what ranks send with what their peers expect: NCCL would wait forever for
// what nobody sends. All ranks know all splits then, and get one error.
func (c *communicator) compareSplits(p *driver.Call, ticket uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.device.cfg.Timeout)
	defer cancel()
	all, err := c.plane.Exchange(ctx, driver.LaneCalls, encodeSplits(p.Splits))
	if err != nil {
		err = fmt.Errorf("%v %d of group %s: %w", p.Operation, ticket, c.cfg.Name(), err)
	} else {
		err = differingSplits(&c.cfg, ticket, all)
	}
	if err != nil {
		return c.plane.Fail(err)
	}
	return nil
}

// goesOn refuses a call that kernels would compare, if a peer has failed. They might still find all
// that they wait for, and nobody would say that the group is no more.
func (c *communicator) goesOn(p *plan, ticket uint64) error {
	if err := c.plane.Cause(); err != nil || !c.plane.PeerFailed() {
		return err
	}
	if err := c.differing(&p.Call, ticket); err != nil {
		return c.plane.Fail(err) // which may be why the peer has failed
	}
	return c.afterPeerFaultAt(&p.Call, ticket)
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
		return c.failUnqueued(&p.Call, err)
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

// queueRecorded puts a call into a capture of the stream's owner, behind those of the group that
// are there. s.Mu and c.mu are held.
func (c *communicator) queueRecorded(p *plan, s *stream.Stream, gpu *cuda.Driver) error {
	return c.recording.Launch(&c.direct.order, s, c.device.streams, func() error {
		return p.queue(s, gpu)
	})
}

// Offer resolves nothing yet: each path is looked at when it is asked for.
func (c *communicator) Offer(call driver.Call) driver.Offer {
	return &plan{Call: call, c: c, count: call.Count}
}
