package nccl

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// message is one end of a message that is under way.
type message struct {
	plan   *plan
	stream *stream
	control.Message
	tag   uint32
	check bool
	since time.Time
	// done is recorded behind the message's work.
	done *event
	// differs is since when the sender's end is known to be another call, or zero; refused counts
	// the parts that were refused since. Both are guarded by messages.mu.
	differs time.Time
	refused int
}

// messages are those under way.
type messages struct {
	known control.Messages // nil if the plane has none

	mu  ranked.Mutex[messagesMu]
	all []*message // guarded by mu
	// last is the message that was queued last on each lane; guarded by mu.
	last map[lane]*message
}

// lane is a direction between this rank and a peer. Its messages share the slots of a mailbox, so
// they go one after the other, in the order of calls, whatever their streams.
type lane struct {
	operation driver.Operation
	peer      int
}

func (p *plan) lane() lane { return lane{p.Operation, p.Root} }

// prune forgets the messages that have gone. mu is held.
func (m *messages) prune() {
	m.all = slices.DeleteFunc(m.all, func(m *message) bool { return m.done.Done() })
}

// openMailboxes makes messages possible where the ranks are on one machine.
func (c *communicator) openMailboxes() error {
	known, ok := c.plane.(control.Messages)
	if !ok || len(c.cfg.Ranks) == 1 {
		return nil
	}
	c.messages.known = known
	return c.mailboxes.open(c)
}

// unchecked is the tag of messages that are not compared.
const unchecked = 1

// tagOf is what fills a slot: what stands for the call, never 0 nor unchecked.
func tagOf(p *plan, check bool) uint32 {
	if !check {
		return unchecked
	}
	return uint32(p.Digest^p.Digest>>32) | 2
}

// offer shows this rank's end of a message to the peer. s.mu and c.mu are held.
func (c *communicator) offer(s *stream, p *plan) (*message, error) {
	if c.plane.Forsaken() {
		return nil, c.afterPeerFault(p)
	}
	if err := c.plane.Cause(); err != nil {
		return nil, err
	}
	check := c.check.Load()
	m := &message{
		plan: p, stream: s, Message: c.messages.known.Offer(&p.Call), check: check,
		tag: tagOf(p, check), since: time.Now(), done: c.device.newEvent(),
	}
	// Who comes second compares, before anything is queued.
	if err := c.compareEnds(m); err != nil {
		return nil, c.plane.Fail(err)
	}
	ticket := c.history.message(p)
	c.busy.note(s)
	s.last, s.ticket, s.operation = c, ticket, p.Operation
	return m, nil
}

// follow makes a stream wait for the message before on each lane, if that is on another stream. It
// is called on a thread of the device; s.mu is held.
func (s *stream) follow(messages ...*message) error {
	var errs []error
	for _, m := range messages {
		known := &m.plan.c.messages
		known.mu.Lock()
		last := known.last[m.plan.lane()]
		known.mu.Unlock()
		if last != nil && last.stream != s {
			errs = append(errs, last.done.holdUp(s.handle, s.device.cuda))
		}
	}
	return errors.Join(errs...)
}

// track has the watcher look after a message whose work is queued. It is called on a thread of the
// device; s.mu is held.
func (c *communicator) track(s *stream, m *message) error {
	err := m.done.record(s)
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.all = append(c.messages.all, m)
	if c.messages.last == nil {
		c.messages.last = map[lane]*message{}
	}
	c.messages.last[m.plan.lane()] = m
	return err
}

// transfer queues one end of a message. s.mu and c.mu are held.
func (c *communicator) transfer(s *stream, p *plan) error {
	m, err := c.offer(s, p)
	if err != nil {
		return err
	}
	err = c.device.do(func() error {
		return errors.Join(s.follow(m), c.move(p, m.tag, s.handle), c.track(s, m), s.keepUp())
	})
	if err != nil {
		err = c.breakOff(p, err)
		s.told(c)
	}
	return err
}

// move queues the copies of a message, eagerly or in a capture.
func (c *communicator) move(p *plan, tag uint32, on cuda.Stream) error {
	if p.Operation == driver.Send {
		return c.mailboxes.send(p, tag, on)
	}
	return c.mailboxes.receive(p, tag, on)
}

// examineMessages asks why messages may never end.
func (c *communicator) examineMessages() error {
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.prune()
	for _, m := range c.messages.all {
		if err := c.examineMessage(m); err != nil {
			return err
		}
	}
	return nil
}

func (c *communicator) examineMessage(m *message) error {
	p, peer := m.plan, c.cfg.Ranks[m.plan.Root]
	doing := m.doing()
	answered := c.messages.known.Answered(&p.Call, m.Number)
	if answered {
		if err := c.compareEnds(m); err != nil {
			m.differs = time.Now()
			return err
		}
	}
	switch {
	case c.messages.known.Lost(p.Root):
		return &driver.RankLostError{Ranks: []int{peer}, Doing: doing, Members: c.cfg.Ranks}
	case !answered && time.Since(m.since) >= c.device.cfg.Timeout:
		return &driver.TimeoutError{
			Doing: doing, Waited: time.Since(m.since).Round(time.Millisecond), Missing: []int{peer},
			Members: c.cfg.Ranks,
			Activity: map[int]string{peer: fmt.Sprintf("has not launched its end of message %d",
				m.Number)},
		}
	}
	return nil
}

// doing names a message for error messages.
func (m *message) doing() string {
	p, preposition := m.plan, "to"
	if p.Operation == driver.Recv {
		preposition = "from"
	}
	return fmt.Sprintf("%v %d of %d bytes with tag %d %s rank %d of the world in group %s",
		p.Operation, m.Number, p.bytes(), p.Tag, preposition, p.c.cfg.Ranks[p.Root], p.c.cfg.Name())
}

// compareEnds compares this rank's end of a message with the peer's, if that is known. Digests are
// compared by the receiver.
func (c *communicator) compareEnds(m *message) error {
	p := m.plan
	theirs, known := c.messages.known.Theirs(&p.Call, m.Number)
	if !known {
		return nil
	}
	e := &driver.MessageError{Group: c.cfg.Name(), Ends: []driver.MessageEnds{{
		From: c.cfg.Ranks[p.Root], To: c.cfg.Ranks[c.cfg.Rank], Tag: p.Tag, Number: m.Number,
	}}}
	ends := &e.Ends[0]
	switch {
	case theirs.Tag != uint64(p.Tag):
		e.Fault, ends.Sent, ends.Received = driver.MessageTagsDiffer, theirs.Tag, uint64(p.Tag)
	case c.cfg.Strict && theirs.After != m.After:
		e.Fault, ends.Sent, ends.Received = driver.MessagesOutOfStep, theirs.After, m.After
	case m.check && p.Operation == driver.Recv && theirs.Digest != p.Digest:
		return c.cfg.Mismatch(m.Number, &p.Call, p.Root)
	default:
		return nil
	}
	if p.Operation == driver.Send {
		ends.From, ends.To = ends.To, ends.From
		ends.Sent, ends.Received = ends.Received, ends.Sent
	}
	return e
}

// releaseMessages ends the waits of messages that will not be answered. It is called again and
// again, since a message of many parts waits many times.
func (c *communicator) releaseMessages() {
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.prune()
	for _, m := range c.messages.all {
		switch {
		case m.differs.IsZero():
			c.mailboxes.release(m.plan, m.tag)
		case c.mailboxes.refuse(m.plan, m.tag, m.refused, time.Since(m.differs)):
			m.refused++
		}
	}
}

// unanswered reports whether a message waits for its other end.
func (c *communicator) unanswered() bool {
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.prune()
	return slices.ContainsFunc(c.messages.all, func(m *message) bool {
		return !c.messages.known.Answered(&m.plan.Call, m.Number)
	})
}

// carrying reports whether a message is still under way.
func (c *communicator) carrying() bool {
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.prune()
	return len(c.messages.all) > 0
}
