package nccl

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/cuda"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Messages between two ranks of one machine go without NCCL, whose Send and Recv occupy the
// communicator until the other side comes.
//
// A Send copies its buffer to memory of the sender's GPU in stream order, and tells the receiver at
// the call: the stream is free at once. A Recv belongs to the message that package message says. If
// that has been told of at the call, the stream itself waits for it and copies it. Else the stream
// waits for a word, and a goroutine of the group has it copied on a stream of its own, once the
// message is there and the stream waits: what is queued there never waits for anything, so no
// message waits for another one.
//
// The values of words are constants, so that captured messages can be replayed: what changes is
// told at the launch. A captured Send has its own memory, and waits in a replay until the message
// of the replay before was copied.

// end is one end of a message that is under way.
type end struct {
	plan *plan
	control.Message
	check bool
	// done is recorded behind the work.
	done *event
	// ready is 1 while the stream waits, or nil if it never does. It waits for through to be 1; where
	// that is nil, for a mark: a direct Recv for that of its message, and a Send of a graph for taken.
	ready, through *word
	// captured tells that the words are a graph's.
	captured bool
	// past tells that the stream has come past the message; guarded by messages.mu.
	past bool
	// taken is the mark that a Send of a graph waits for, else nil.
	taken *uint32
	since time.Time // since when the stream is known to wait; guarded by messages.mu

	// What follows is of a Recv, and guarded by messages.mu.

	// source and number name the message, once it is claimed; letter is what it was told of.
	source  int
	number  uint64
	claimed bool
	letter  *letter
	// before is the Recv that waits for the same words before this one, or nil.
	before *end
	// handled tells that the copy is queued, direct that it is so on the Recv's own stream.
	handled, direct bool
}

// messages are those of a group.
type messages struct {
	known control.Messages // nil if the ranks cannot send messages to each other
	own   *mailbox
	file  *os.File // of own, as long as peers may fetch it; guarded by c.mu

	outlets []outlet // by group rank; guarded by c.mu
	staging staging  // guarded by c.mu
	closed  bool     // guarded by c.mu

	mu      ranked.Mutex[messagesMu]
	matcher message.Matcher[*end] // guarded by mu
	// letters are the messages that were told of and that no Recv has, expected the claimed ones that
	// were not told of; both guarded by mu.
	letters  map[address]*letter
	expected map[address]*end
	// told are those that no Recv had when this rank was told of them, and that the matcher does not
	// know; anywhere is how many receives from any source have none. Both guarded by mu.
	told     []*letter
	anywhere int
	repeated map[spot]*letter     // the latest message of a place that a graph uses; guarded by mu
	lent     map[spot]*lentMemory // segments of peers; guarded by mu
	open     []*end               // receives whose copies are not queued; guarded by mu
	all      []*end               // those whose streams have not come past them; guarded by mu
	running  bool                 // a goroutine delivers; guarded by mu
	stopped  bool                 // none will any more; guarded by mu

	delivering sync.WaitGroup
	carriers   [4]cuda.Stream // of who delivers
}

// address names a message.
type address struct {
	source, tag int
	number      uint64
}

// spot is a place, or a segment, of a peer.
type spot struct {
	source int
	number uint64
}

// letter is a message that this rank was told of.
type letter struct {
	header
	source int
	// before is the message that has the same place before this one, or nil.
	before  *letter
	handled bool
}

func (l *letter) address() address { return address{l.source, int(l.tag), l.number} }

// next reports whether the marks of the letter's place are those of its message.
func (l *letter) next() bool { return l.before == nil || l.before.handled }

// openMessages makes messages possible where the ranks are on one machine.
func (c *communicator) openMessages() error {
	known, ok := c.plane.(control.Messages)
	if !ok || len(c.cfg.Ranks) == 1 {
		return nil
	}
	m := &c.messages
	m.letters, m.expected = map[address]*letter{}, map[address]*end{}
	m.repeated, m.lent = map[spot]*letter{}, map[spot]*lentMemory{}
	m.outlets = make([]outlet, len(c.cfg.Ranks))
	var err error
	if m.own, m.file, err = c.openMailbox(); err != nil {
		return err
	}
	m.known = known
	// Now, since CUDA may wait for streams to make one, which may wait for messages.
	return c.device.do(func() (err error) {
		for i := range m.carriers {
			if m.carriers[i], err = c.device.cuda.StreamCreateForemost(); err != nil {
				return err
			}
		}
		return nil
	})
}

// newEnd counts a message at its call. c.mu is held.
func (c *communicator) newEnd(p *plan) *end {
	return &end{
		plan: p, Message: c.messages.known.Count(&p.Call), check: c.check.Load(),
		done: c.device.newEvent(),
	}
}

// mayMessage refuses a message when the group has failed.
func (c *communicator) mayMessage(p *plan) error {
	if c.plane.Forsaken() {
		return c.afterPeerFault(p)
	}
	return c.plane.Cause()
}

// noteMessage remembers a message that is about to be queued. s.mu and c.mu are held.
func (c *communicator) noteMessage(s *stream, p *plan) {
	ticket := c.history.message(p)
	c.busy.note(s)
	s.last, s.ticket, s.operation = c, ticket, p.Operation
}

// transfer queues one end of a message. s.mu and c.mu are held.
func (c *communicator) transfer(s *stream, p *plan) error {
	if err := c.mayMessage(p); err != nil {
		return err
	}
	if p.Operation == driver.Send {
		return c.send(s, p)
	}
	return c.receive(s, p)
}

// unqueued fails the group over a message that could not be queued. s.mu is held.
func (c *communicator) unqueued(s *stream, p *plan, err error) error {
	err = c.breakOff(p, err)
	s.told(c)
	return err
}

// track has the watcher look after messages whose work is queued. It is called on a thread of the
// device; s.mu is held.
func (c *communicator) track(s *stream, ends ...*end) error {
	var errs []error
	for _, e := range ends {
		errs = append(errs, e.done.record(s))
	}
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.all = append(c.messages.all, ends...)
	c.deliver()
	return errors.Join(errs...)
}

// prune forgets the messages that streams have come past. m.mu is held.
func (m *messages) prune() {
	m.forget(func(e *end) bool {
		if e.past = e.past || e.done.point() != nil && e.done.Done(); !e.past {
			return false
		}
		if !e.captured && e.ready != nil {
			e.done.device.words.put(e.ready)
			if e.through != nil {
				e.done.device.words.put(e.through)
			}
			e.ready = nil
		}
		return true
	})
}

// forget takes messages off the lists. m.mu is held.
func (m *messages) forget(gone func(*end) bool) {
	m.all = slices.DeleteFunc(m.all, gone)
	m.open = slices.DeleteFunc(m.open, gone)
}

// waits reports whether the stream of a message is known to wait for it, and since when. m.mu is
// held.
func (e *end) waits() bool {
	if e.handled && !e.direct || e.ready == nil || e.ready.value() != 1 {
		return false
	}
	if e.since.IsZero() {
		e.since = time.Now()
	}
	return true
}

// examineMessages asks why messages may never end.
func (c *communicator) examineMessages() error {
	m := &c.messages
	if m.known == nil {
		return nil
	}
	m.mu.Lock()
	m.prune()
	err := c.readMail()
	var waiting []*end
	for _, e := range m.all {
		if c.lacks(e) {
			waiting = append(waiting, e)
		}
	}
	m.mu.Unlock()
	for _, e := range waiting {
		if err == nil {
			err = c.examineMessage(e)
		}
	}
	return err
}

// lacks reports whether a stream waits for a message that is not there, or, for a Send of a graph,
// for its place. m.mu is held.
func (c *communicator) lacks(e *end) bool {
	switch {
	case c.messages.own == nil || !e.waits():
		return false
	case e.taken != nil:
		return atomic.LoadUint32(e.taken) == 0
	}
	return e.letter == nil ||
		atomic.LoadUint32(&c.messages.own.marks(e.source).full[e.letter.place]) == 0
}

// examineMessage asks why a message may never come, or, for a Send of a graph, why the one before
// may never be taken.
func (c *communicator) examineMessage(e *end) error {
	m, p := &c.messages, e.plan
	var err error
	m.mu.Lock()
	settled := e.taken == nil && c.cfg.Strict && e.letter == nil && !c.mayArrive(e)
	m.mu.Unlock()
	if settled && m.known.Past(p.Root, e.After) {
		err = &driver.MessageError{
			Fault: driver.MessagesUnmatched, Group: c.cfg.Name(), Sequence: e.After + 1,
			Ends: c.MessagesBefore(e.After + 1),
		}
	} else {
		err = m.known.Absent(p.Root, e.since, func() string { return c.describe(p, e.Number) })
	}
	if err == nil {
		return nil
	}
	// What the rank has told and done before it came to that is seen by now.
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := c.readMail()
	var unmatched *driver.MessageError
	if failed != nil || !c.lacks(e) ||
		errors.As(err, &unmatched) && (e.letter != nil || c.mayArrive(e)) {
		return failed
	}
	return err
}

// describe names a message for error messages; the number is 0 if it has none.
func (c *communicator) describe(p *plan, number uint64) string {
	preposition, peer := "to", "any rank"
	if p.Operation == driver.Recv {
		preposition = "from"
	}
	if p.Root != driver.AnySource {
		peer = fmt.Sprintf("rank %d of the world", c.cfg.Ranks[p.Root])
	}
	which := ""
	if number > 0 {
		which = fmt.Sprintf(" %d", number)
	}
	return fmt.Sprintf("%v%s of %d bytes with tag %d %s %s in group %s", p.Operation, which, p.bytes(),
		p.Tag, preposition, peer, c.cfg.Name())
}

// releaseMessages ends the waits of messages that will not come. It is called again and again,
// since a graph that is launched several times waits as often. A Recv whose copy is queued is left
// alone: its stream goes on behind that.
func (c *communicator) releaseMessages() {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	for _, e := range m.all {
		switch {
		case e.direct:
			atomic.StoreUint32(&m.own.marks(e.letter.source).full[e.letter.place], 1)
		case e.ready == nil || e.handled:
		case e.plan.Operation == driver.Recv:
			e.through.set(1)
		default:
			atomic.StoreUint32(e.taken, 1)
		}
	}
}

// unanswered reports whether a Recv waits for a message of which this rank was not told.
func (c *communicator) unanswered() bool {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.open, func(e *end) bool { return e.letter == nil })
}

// carrying reports whether a message is still under way.
func (c *communicator) carrying() bool {
	c.messages.mu.Lock()
	defer c.messages.mu.Unlock()
	c.messages.prune()
	return len(c.messages.all) > 0
}

// errUnmatched says which messages end with the group.
func (c *communicator) errUnmatched() error {
	m := &c.messages
	if m.known == nil || c.plane.Cause() != nil {
		return nil
	}
	var untaken []driver.MessageEnds
	if c.mu.TryLock() { // else a call waits for others, which the end of the group ends
		for peer := range m.outlets {
			untaken = append(untaken, c.untaken(peer)...)
		}
		c.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := errors.Join(c.readMail(), c.arrive(true)); err != nil {
		return err
	}
	atomic.StoreUint32(&m.own.bell().left, 1)
	var awaited []control.Awaited
	for _, e := range m.open {
		a := control.Awaited{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.number}
		if e.claimed {
			a.Source = e.source
		}
		awaited = append(awaited, a)
	}
	return control.Unmatched(&c.cfg, m.matcher.Unclaimed(), awaited, untaken)
}

var _ driver.MessageCounts = (*communicator)(nil)

// MessagesBefore lists what this rank has sent and received before a collective.
func (c *communicator) MessagesBefore(collective uint64) []driver.MessageEnds {
	if c.messages.known == nil {
		return nil
	}
	return c.messages.known.MessagesBefore(collective)
}
