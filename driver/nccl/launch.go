package nccl

import (
	"errors"
	"fmt"
	"time"

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
	if !prepared.ready.Prepared() || c.device.gpu.Guests.Load() {
		return c.launch(s, prepared)
	}
	s.Mu.Lock()
	s.BusyAgain() // before the ticket: a group that fails then blames the stream
	c.mu.Lock()
	if s.Closed() || s.Capture != nil || c.closing.Load() || c.check.Load() ||
		c.busy.Windows.Load() && prepared.Path != driver.PathWindow ||
		c.direct.none == "" && c.direct.turns.Open() != s {
		c.mu.Unlock()
		s.Mu.Unlock()
		return c.launch(s, prepared)
	}
	// What launch comes to then, with less on the way.
	if ticket, ok := c.plane.TrySubmit(); ok {
		c.note(s, prepared, ticket)
		c.direct.turns.ByNCCL = true
		if err = prepared.ready.On(s.CUDA); err != nil {
			err = s.Refuse(c.group, c.breakOff(&prepared.Call, err))
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
	if p.Operation == driver.Recv && s.Capture == nil && !s.Closed() {
		if err := s.Leave(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.Closed() || s.Capture != nil || c.closing.Load() || p.Operation.PointToPoint() {
		return c.launchOtherwise(s, p)
	}
	if p.Path != driver.PathWindow && c.busy.Windows.Load() && c.busy.Over(s) {
		c.busy.Windows.Store(false) // else this call would pass for one that does not hear of an abort
	}
	var err error
	if c.replayed.Load() {
		err = c.askKernels()
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
	c.history.note(p, ticket)
	if !c.busy.Knows(s) {
		c.busy.Note(s)
	}
	if p.Path == driver.PathWindow && !c.busy.Windows.Load() {
		c.busy.Windows.Store(true)
	}
	s.Note(c.group, ticket, p.Operation)
}

// compare makes sure that all ranks launch the same call. Kernels of our own do that
// themselves, but a rank whose call is another one may take another path, so all show what they
// launch. Ranks that are apart have nothing to show it on, and compare as on the other paths.
func (c *communicator) compare(p *plan, ticket uint64) error {
	if c.direct.shown != nil {
		c.direct.shown.Announce(ticket, p.Digest)
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
		err = compareSplits(c, &p.Call, ticket)
	}
	return err
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

// afterPeerFault is afterPeerFaultAt for a call that has no ticket.
func (c *communicator) afterPeerFault(p *driver.Call) error {
	ticket, _ := c.history.last()
	return c.afterPeerFaultAt(p, ticket+1)
}

// afterPeerFaultAt fails the communicator after a peer has failed, and says why this rank cannot go
// on.
func (c *communicator) afterPeerFaultAt(p *driver.Call, ticket uint64) error {
	if err := c.plane.Cause(); err != nil {
		return err
	}
	// Worded as the wait for it would be: ranks compare where each of them is.
	wait := c.waitFor(ticket, p.Operation)
	if err := c.plane.Trouble(wait, time.Now()); err != nil {
		return c.plane.Fail(err)
	}
	return c.plane.Fail(c.plane.PeerFault(wait.Doing()))
}

// call gives a collective to NCCL, or queues kernels. s.Mu and c.mu are held.
func (c *communicator) call(p *plan, s *stream.Stream) error {
	if p.nothing() {
		return nil
	}
	err := c.device.gpu.With(func(gpu *cuda.Driver) error {
		return errors.Join(p.run(s, gpu), s.KeepUp())
	})
	if err != nil {
		return c.breakOff(&p.Call, err)
	}
	return nil
}

// breakOff fails the communicator over a call that others take for launched, and which this rank
// could not queue: nothing else would end their waits for it.
func (c *communicator) breakOff(p *driver.Call, err error) error {
	if cause := c.plane.Cause(); cause != nil {
		return cause // by which NCCL's call was ended, too
	}
	if c.plane.PeerFailed() {
		return c.afterPeerFault(p) // a peer that has failed hands out no memory any more
	}
	return c.plane.Fail(fmt.Errorf("%v on group %s: %w", p.Operation, c.cfg.Name(), err))
}
