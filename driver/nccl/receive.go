package nccl

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
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
		read := b.read
		told := spin.LoadAcquire64(&b.posted) - read
		if told > boxPlaces {
			return fmt.Errorf("rank %d of the world tells of %d messages at once in group %s, which "+
				"cannot be", c.cfg.Ranks[source], told, c.cfg.Name())
		}
		for range told {
			read++
			l := &letter{header: b.headers[read%boxPlaces], source: source}
			spin.StoreRelease64(&b.read, read)
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
		if !all && (!l.next() || !m.there(l)) {
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

// possible reports whether a peer may have told of a message. What it says of its segment is
// compared with what is mapped, once that is.
func (l *letter) possible() bool {
	return l.tag <= driver.MaxTag && l.number > 0 && l.place < boxPlaces &&
		l.segment <= math.MaxUint32 && l.size <= math.MaxInt64 &&
		(l.bytes == 0 || l.segment > 0 && l.offset <= l.size && l.bytes <= l.size-l.offset)
}

// errImpossible is about a message that no peer that is in order tells of.
func (c *communicator) errImpossible(l *letter) error {
	return fmt.Errorf("rank %d of the world tells of message %d with tag %d of %d bytes in group "+
		"%s, which cannot be", c.cfg.Ranks[l.source], l.number, l.tag, l.bytes, c.cfg.Name())
}

// takeLetter takes notice of a message. m.mu is held.
func (c *communicator) takeLetter(l *letter) error {
	m := &c.messages
	if !l.possible() {
		return c.errImpossible(l)
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
	sent := control.End{Digest: l.digest, After: l.after, Bytes: l.bytes}
	received := control.End{Digest: p.Digest, After: e.After, Bytes: uint64(p.bytes())}
	err := control.Differ(&c.cfg, sent, received, &p.Call, e.source, e.number, e.check)
	if err == nil {
		e.letter = l
	}
	return err
}

// post puts a Recv in its place among those of its tag, and reports whether it is given its message
// now. It returns an error if two ends differ.
func (c *communicator) post(e *end) (now bool, err error) {
	m, p := &c.messages, e.plan
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.Root == driver.AnySource {
		m.anywhere++
	}
	err = errors.Join(
		c.readMail(), // so that what this rank was told of counts
		c.hand(m.matcher.Post(e, p.Tag, p.Root, c.part(e.After))))
	if err == nil && !e.captured {
		now, err = c.take(e)
	}
	if err == nil && !now {
		m.open = append(m.open, e)
	}
	return now, err
}

// receive queues a Recv. s.Mu and c.mu are held.
func (c *communicator) receive(s *stream.Stream, p *plan) error {
	e := c.newEnd(p)
	err := c.device.gpu.Do(func() (err error) {
		e.descriptor, err = c.device.descriptors.Take(c.device.gpu.CUDA)
		return err
	})
	if err != nil {
		return c.unqueued(s, p, err)
	}
	e.state = (*gpu.Word)(&e.descriptor.State)
	c.noteMessage(s, p)
	now, err := c.post(e)
	if err != nil {
		c.device.descriptors.Put(e.descriptor)
		return c.differs(s, err)
	}
	if now {
		c.give(e)
	}
	c.expect(e)
	err = c.device.gpu.Do(func() error {
		return errors.Join(c.queueCopy(e.descriptor, p, s.CUDA), s.KeepUp())
	})
	if err != nil {
		c.unexpect(e)
		return c.unqueued(s, p, err)
	}
	return nil
}

// differs fails the group over messages whose ends differ. s.Mu is held.
func (c *communicator) differs(s *stream.Stream, err error) error {
	err = c.plane.Fail(err)
	s.Told(c)
	return err
}
