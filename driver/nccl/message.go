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
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
	"symmem/internal/message"
	"symmem/internal/ranked"
)

// Messages between two ranks of one machine go without NCCL, whose Send and Recv occupy the
// communicator until the other side comes.
//
// A Send copies its buffer to memory of the sender's GPU in stream order, and tells the receiver at
// the call: the stream is free at once. A Recv belongs to the message that package message says.
// Its stream waits for a word of a descriptor, and then runs a kernel that copies what the
// descriptor names. The host writes both once the message is there, and makes no call to CUDA for
// that: such a call may wait for a thread that waits for a stream, and the stream for the message.
//
// The values of words are constants, so that captured messages can be replayed: what changes is
// told at the launch. A captured Send has its own memory, and waits in a replay until the message
// of the replay before was copied.

// end is one end of a message that is under way.
type end struct {
	plan *plan
	control.Message
	check bool
	// captured tells that the words are a graph's.
	captured bool
	// state is kernels.MessageWaits while the stream waits, or nil if it never does: a Recv for its
	// message, and a Send of a graph for taken to be 1.
	state *gpu.Word
	taken *uint32
	// full is the other word of the place of such a Send, and released the receiver's word for all.
	full, released *uint32
	// done is recorded behind the work of a Send, else nil.
	done  *stream.Event
	since time.Time // since when the stream is known to wait; guarded by messages.mu
	// releasing is since when a Send is to go on although the group has ended; guarded by
	// messages.mu
	releasing time.Time
	// before is the end that has the same words of a graph before this one, or nil. handled tells
	// that a Recv has been given its message, or refused, or that the stream is known to be past a
	// Send. Both are guarded by messages.mu.
	before  *end
	handled bool

	// What follows is of a Recv, and guarded by messages.mu.

	descriptor *kernels.Message
	// source and number name the message, once it is claimed; letter is what it was told of.
	source  int
	number  uint64
	claimed bool
	letter  *letter
}

// messages are those of a group.
type messages struct {
	known control.Messages // nil if the ranks cannot send messages to each other
	own   *mailbox
	file  *os.File // of own, until the peers have mapped it or the group could not be made

	outlets []outlet // by group rank; guarded by c.mu
	staging staging  // guarded by c.mu
	closed  bool     // guarded by c.mu

	mu      ranked.Mutex[messagesMu]
	matcher message.Matcher[*end] // guarded by mu
	// letters are the messages that were told of and that no Recv has, expected the claimed ones
	// that were not told of; both guarded by mu.
	letters  map[address]*letter
	expected map[address]*end
	// told are those that no Recv had when this rank was told of them, and that the matcher does
	// not know; anywhere is how many receives from any source have none. Both guarded by mu.
	told     []*letter
	anywhere int
	repeated map[spot]*letter     // the latest message of a place that a graph uses; guarded by mu
	lent     map[spot]*lentMemory // segments of peers; guarded by mu
	open     []*end               // receives that have not been given a message; guarded by mu
	// sends and receives are those that their streams have not come past; looked is how many sends
	// were left when they were last looked through. All are guarded by mu.
	sends, receives []*end
	looked          int
	running         bool // a goroutine delivers; guarded by mu
	stopped         bool // none will any more; guarded by mu
	late            bool // releaseLate was called; of the goroutine that tears the group down

	delivering sync.WaitGroup
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

// openMessages makes messages possible where the ranks are on one machine, and have GPUs that run
// their kernels.
func (c *communicator) openMessages() error {
	known, ok := c.plane.(control.Messages)
	if !ok || len(c.cfg.Ranks) == 1 || c.withoutKernels() != "" {
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
	return m.staging.add(c, c.firstStaging())
}

// withoutMessages says why ranks of the group cannot send messages to each other.
func (c *communicator) withoutMessages() error {
	if why := c.withoutKernels(); why != "" {
		return fmt.Errorf("messages: %s: %w", why, driver.ErrUnsupported)
	}
	return fmt.Errorf("messages between ranks of several machines: %w", driver.ErrUnsupported)
}

// withoutKernels says why some rank of the group runs no kernels of our own, or is empty.
func (c *communicator) withoutKernels() string {
	for i, m := range c.members {
		if m.NoKernels != "" {
			return fmt.Sprintf("rank %d of the world: %s", c.cfg.Ranks[i], control.Printable(m.NoKernels))
		}
	}
	return ""
}

// newEnd counts a message at its call. c.mu is held.
func (c *communicator) newEnd(p *plan) *end {
	return &end{plan: p, Message: c.messages.known.Count(&p.Call), check: c.check.Load()}
}

// mayMessage refuses a message for a stream when the group has failed. The stream counts as busy
// before that, so the end of a group that fails from now on waits for the message and ends it. s.Mu
// and c.mu are held.
func (c *communicator) mayMessage(s *stream.Stream, p *plan) error {
	c.busy.Note(s)
	err := c.plane.Cause()
	if c.plane.PeerFailed() {
		err = c.afterPeerFault(p)
	}
	if err != nil {
		s.Told(c) // by this error
	}
	return err
}

// noteMessage remembers a message that is about to be queued. s.Mu and c.mu are held.
func (c *communicator) noteMessage(s *stream.Stream, p *plan) {
	ticket := c.history.message(p)
	s.Note(c, ticket, p.Operation)
}

// transfer queues one end of a message. s.Mu and c.mu are held.
func (c *communicator) transfer(s *stream.Stream, p *plan) error {
	if err := c.mayMessage(s, p); err != nil {
		return err
	}
	if p.Operation == driver.Send {
		return c.send(s, p)
	}
	return c.receive(s, p)
}

// unqueued fails the group over a message that could not be queued. s.Mu is held.
func (c *communicator) unqueued(s *stream.Stream, p *plan, err error) error {
	err = c.breakOff(p, err)
	s.Told(c)
	return err
}

// expect notes receives before their waits are queued: from then on they are given their messages,
// and are released when the group ends. A call to CUDA behind such a wait may not return before the
// wait has ended: some other thread may be in one that waits for all streams.
func (c *communicator) expect(ends ...*end) {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	m.receives = append(m.receives, ends...)
	m.pruneReceives()
	c.deliver()
}

// unexpect forgets a Recv that could not be queued, or not wholly: a wait that is there ends. The
// descriptor stays, since the device may look at it.
func (c *communicator) unexpect(e *end) {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	if !e.captured {
		e.refuse()
	}
	same := func(other *end) bool { return other == e }
	m.receives = slices.DeleteFunc(m.receives, same)
	m.open = slices.DeleteFunc(m.open, same)
}

// track notes Sends that were queued on a stream, whose lock is held. It is called on a thread of
// the device.
func (c *communicator) track(s *stream.Stream, ends ...*end) error {
	m := &c.messages
	var errs []error
	for _, e := range ends {
		e.done = c.device.streams.NewEvent()
		errs = append(errs, e.done.Record(s))
	}
	m.mu.Lock()
	m.sends = append(m.sends, ends...)
	many := len(m.sends) > 2*m.looked+manySends
	m.mu.Unlock()
	if many {
		m.pruneSends()
	}
	return errors.Join(errs...)
}

// manySends is how many are kept before they are looked through.
const manySends = 64

// pruneSends forgets those that streams have come past. It asks CUDA, which may wait for a stream,
// so nothing that gives receives their messages waits for it.
func (m *messages) pruneSends() {
	m.mu.Lock()
	all := slices.Clone(m.sends)
	m.mu.Unlock()
	over := map[*end]bool{}
	for _, e := range all {
		over[e] = e.done.Done()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sends = slices.DeleteFunc(m.sends, func(e *end) bool {
		if over[e] {
			e.handled, e.before = true, nil
		}
		return over[e]
	})
	m.looked = len(m.sends)
}

// pruneReceives forgets those that streams have come past. m.mu is held.
func (m *messages) pruneReceives() {
	m.receives = slices.DeleteFunc(m.receives, func(e *end) bool {
		over := e.over()
		if over && !e.captured {
			e.plan.c.device.descriptors.Put(e.descriptor)
		}
		return over
	})
}

// over reports whether the stream is past a Recv. If it is one of a graph the stream may have come
// to the next launch of it already. m.mu is held.
func (e *end) over() bool {
	state := e.state.Value()
	return e.handled && (state == kernels.MessageDone || e.captured && state == kernels.MessageWaits)
}

// waits reports whether the stream of a message is known to wait for it, and since when. m.mu is
// held.
func (e *end) waits() bool {
	if e.handled || e.before != nil && !e.before.handled || e.state == nil ||
		e.state.Value() != kernels.MessageWaits {
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
	replayed := func(e *end) bool { return e.taken != nil }
	m.mu.Lock()
	again := slices.ContainsFunc(m.sends, replayed)
	m.mu.Unlock()
	if again {
		m.pruneSends() // so that of several launches that one is found to wait whose turn it is
	}
	m.mu.Lock()
	m.pruneReceives()
	err := c.readMail()
	var waiting []*end
	for _, e := range m.open {
		if c.lacks(e) {
			waiting = append(waiting, e)
		}
	}
	for _, e := range m.sends {
		if replayed(e) && c.lacks(e) {
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
	return e.letter == nil || !c.messages.there(e.letter)
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

// unanswered reports whether a Recv waits for a message of which this rank was not told.
func (c *communicator) unanswered() bool {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.open, func(e *end) bool { return e.letter == nil })
}

// carrying reports whether a message is still under way.
func (c *communicator) carrying() bool {
	m := &c.messages
	m.pruneSends()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pruneReceives()
	return len(m.sends)+len(m.receives) > 0
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
	if m.own == nil {
		return nil // the group has failed meanwhile, and been torn down
	}
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
