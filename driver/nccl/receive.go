package nccl

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// readMail takes notice of all messages that this rank was told of. It returns an error if one does
// not fit to its Recv. m.mu is held.
func (c *communicator) readMail() (err error) {
	m := &c.messages
	for source := range c.cfg.Ranks {
		if source == c.cfg.Rank || m.own == nil {
			continue
		}
		b := m.own.box(source)
		for posted := spin.LoadAcquire64(&b.posted); b.read < posted; {
			l := &letter{header: b.headers[(b.read+1)%boxPlaces], source: source}
			spin.StoreRelease64(&b.read, b.read+1)
			if failed := c.takeLetter(l); err == nil {
				err = failed
			}
		}
	}
	if m.anywhere > 0 && err == nil {
		err = c.arrive(false)
	}
	return err
}

// arrive tells the matcher of the messages that are there by now, in the order in which this rank
// was told of them, or, with all, of those that have yet to come, too. Receives from any source
// take what is there: a message that is not may never come before they have another one. m.mu is
// held.
func (c *communicator) arrive(all bool) error {
	m := &c.messages
	told := m.told
	m.told = nil
	var errs []error
	for _, l := range told {
		if m.letters[l.address()] != l {
			continue // a Recv has it
		}
		if !all && (!l.next() || atomic.LoadUint32(&m.own.marks(l.source).full[l.place]) != 1) {
			m.told = append(m.told, l)
			continue
		}
		errs = append(errs, c.hand(m.matcher.Arrive(message.Arrival{
			Source: l.source, Tag: int(l.tag), Number: l.number, Segment: c.part(l.after),
		})))
	}
	return errors.Join(errs...)
}

// mayArrive reports whether this rank was told of a message that a Recv from any source may get.
// m.mu is held.
func (c *communicator) mayArrive(e *end) bool {
	return slices.ContainsFunc(c.messages.told, func(l *letter) bool {
		return int(l.tag) == e.plan.Tag && c.part(l.after) == c.part(e.After) &&
			c.messages.letters[l.address()] == l
	})
}

// takeLetter takes notice of a message. m.mu is held.
func (c *communicator) takeLetter(l *letter) error {
	m := &c.messages
	if l.tag > driver.MaxTag || l.number == 0 || l.place >= boxPlaces || l.bytes > 1<<62 ||
		l.bytes > 0 && (l.segment == 0 || l.offset > l.size || l.bytes > l.size-l.offset) {
		return fmt.Errorf("rank %d of the world tells of message %d with tag %d of %d bytes in group "+
			"%s, which cannot be", c.cfg.Ranks[l.source], l.number, l.tag, l.bytes, c.cfg.Name())
	}
	if at := (spot{l.source, l.place}); l.again != 0 {
		l.before, m.repeated[at] = m.repeated[at], l
	}
	m.letters[l.address()] = l
	if e := m.expected[l.address()]; e != nil {
		delete(m.expected, l.address())
		return c.match(e)
	}
	if m.told = append(m.told, l); len(m.told) > 2*len(m.letters)+boxPlaces {
		m.told = slices.DeleteFunc(m.told, func(l *letter) bool {
			return m.letters[l.address()] != l
		})
	}
	return nil
}

// part is what the matcher knows of a message that was called behind so many collectives.
func (c *communicator) part(after uint64) uint64 {
	if !c.cfg.Strict {
		return 0
	}
	return after
}

// hand tells receives which messages are theirs. m.mu is held.
func (c *communicator) hand(claims []message.Claim[*end]) error {
	m := &c.messages
	var errs []error
	for _, claim := range slices.Clone(claims) {
		e := claim.Receive
		e.source, e.number, e.claimed = claim.Source, claim.Number, true
		if e.plan.Root == driver.AnySource {
			m.anywhere--
		}
		errs = append(errs, c.match(e))
	}
	return errors.Join(errs...)
}

// match gives a Recv what it was told of its message, if it was, and compares the two ends. m.mu is
// held.
func (c *communicator) match(e *end) error {
	m, p := &c.messages, e.plan
	at := address{e.source, p.Tag, e.number}
	l := m.letters[at]
	if l == nil {
		m.expected[at] = e
		return nil
	}
	delete(m.letters, at)
	e.letter = l
	sent := control.End{Digest: l.digest, After: l.after, Bytes: l.bytes}
	received := control.End{Digest: p.Digest, After: e.After, Bytes: uint64(p.bytes())}
	return control.Differ(&c.cfg, sent, received, &p.Call, e.source, e.number, e.check)
}

// post puts a Recv in its place among those of its tag. With direct it is settled whether the
// Recv's own stream may wait for the message and copy it. It returns an error if two ends differ.
func (c *communicator) post(e *end, direct bool) error {
	m, p := &c.messages, e.plan
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Root == driver.AnySource {
		m.anywhere++
	}
	err := errors.Join(
		c.readMail(), // so that what this rank was told of counts
		c.hand(m.matcher.Post(e, p.Tag, p.Root, c.part(e.After))))
	if err != nil {
		return err
	}
	if l := e.letter; direct && l != nil && l.again == 0 {
		if lent, ok := m.lent[spot{l.source, l.segment}]; l.bytes == 0 || ok && lent.at != 0 {
			e.direct, e.handled, l.handled = true, true, true
			return nil
		}
	}
	m.open = append(m.open, e)
	return nil
}

// receive queues a Recv. s.mu and c.mu are held.
func (c *communicator) receive(s *stream, p *plan) error {
	e := c.newEnd(p)
	c.noteMessage(s, p)
	// CUDA makes the call that copies to other memory wait for the stream.
	direct := p.bytes() == 0 || c.device.knows(p.recv)
	if err := c.post(e, direct); err != nil {
		return c.differs(s, err)
	}
	if e.direct && p.Arrived != nil {
		p.Arrived(e.source)
	}
	err := c.device.do(func() error {
		return errors.Join(c.await(e, s.handle), c.track(s, e), s.keepUp())
	})
	if err != nil {
		return c.unqueued(s, p, err)
	}
	return nil
}

// differs fails the group over messages whose ends differ. s.mu is held.
func (c *communicator) differs(s *stream, err error) error {
	err = c.plane.Fail(err)
	s.told(c)
	return err
}

// await queues the wait for a message, and its copy if it is direct. It is called on a thread of
// the device.
func (c *communicator) await(e *end, on cuda.Stream) error {
	gpu := c.device.cuda
	ready, err := c.device.words.take(gpu)
	if err != nil {
		return err
	}
	if e.direct {
		c.messages.mu.Lock()
		e.ready = ready
		c.messages.mu.Unlock()
		word := c.messages.own.at(&c.messages.own.marks(e.letter.source).full[e.letter.place])
		if err := c.takeShown(ready, word, on); err != nil {
			return err
		}
		return c.fetch(e, on)
	}
	through, err := c.device.words.take(gpu)
	if err != nil {
		c.device.words.put(ready)
		return err
	}
	c.messages.mu.Lock()
	e.ready, e.through = ready, through
	c.messages.mu.Unlock()
	if err := gpu.StreamWriteValue(on, ready.address(), 1); err != nil {
		return err
	}
	return gpu.StreamWaitValue(on, through.address(), 1, cuda.WaitEqual)
}

// fetch queues the copy of a message that is there, and the word that says so. It is called on a
// thread of the device.
func (c *communicator) fetch(e *end, on cuda.Stream) error {
	m, l, gpu := &c.messages, e.letter, c.device.cuda
	var from uintptr
	if l.bytes > 0 {
		m.mu.Lock()
		from = m.lent[spot{l.source, l.segment}].at + uintptr(l.offset)
		m.mu.Unlock()
	}
	if err := move(gpu, e.plan.recv, from, int64(l.bytes), on); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, m.own.at(&m.own.marks(l.source).taken[l.place]), 1)
}

// takeShown is take, with a word that is 1 meanwhile.
func (c *communicator) takeShown(ready *word, word uintptr, on cuda.Stream) error {
	gpu := c.device.cuda
	err := gpu.StreamWriteValue(on, ready.address(), 1)
	if err == nil {
		err = take(gpu, word, on)
	}
	if err == nil {
		err = gpu.StreamWriteValue(on, ready.address(), 0)
	}
	return err
}

// take makes a stream wait until a word is 1, and takes it back to 0.
func take(gpu *cuda.Driver, word uintptr, on cuda.Stream) error {
	if err := gpu.StreamWaitValue(on, word, 1, cuda.WaitEqual); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, word, 0)
}
