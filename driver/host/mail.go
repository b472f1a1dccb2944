package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/message"
	"symmem/internal/ranked"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// mail is what a communicator knows of messages: their numbers, which are given at the calls, and
// which receive gets which message.
//
// Frames for a receive that does not run yet are kept in memory of the heap, and a Send whose
// frames are not taken leaves the rest there for a goroutine of the group. So no stream waits for a
// receive that is queued behind something else.
type mail struct {
	outlets []outlet // by group rank
	inlets  []inlet  // by group rank
	// balance is what this rank's calls up to now weigh, in strict groups.
	balance atomic.Uint64

	mu      ranked.Mutex[mailMu]
	matcher message.Matcher[*receive] // guarded by mu
	sent    message.Tally             // by receiver; guarded by mu
	awaited message.Tally             // by source; guarded by mu
	open    map[*receive]struct{}     // receives that have no message yet; guarded by mu
}

func newMail(ranks int) mail {
	return mail{
		outlets: make([]outlet, ranks), inlets: make([]inlet, ranks),
		open: map[*receive]struct{}{},
	}
}

// letter is a Send or Recv that was called.
type letter struct {
	c    *communicator
	plan *plan
	// after is how many collectives this rank had called before.
	after uint64
	// check reports whether calls are compared, as it was at the call.
	check bool
}

// number makes a message of a plan and gives it its number.
func (c *communicator) number(p *plan) (transfer, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, c.Cause()
	}
	c.launched[p.Path]++
	l := letter{c: c, plan: p, after: c.submitted, check: c.check.Load()}
	if p.Operation == driver.Send {
		// Before the next collective is shown, so that the receiver can tell that no more will come.
		box := pairIn(c.region.Base(), len(c.blocks), c.cfg.Rank, p.Root)
		spin.StoreRelease64(&box.posted, box.posted+1)
	}
	c.mu.Unlock()
	if p.Operation == driver.Send {
		return c.mail.newSend(l), nil
	}
	return c.mail.newReceive(l), nil
}

// transfer is a message under way.
type transfer interface {
	work
	// soon does what can be done without a wait, and reports whether that was all.
	soon() (done bool, err error)
}

// message runs a Send or Recv, or as much of it as can be done without a wait, or queues it. s.mu
// is held.
func (s *stream) message(p *plan) error {
	t, err := p.c.number(p)
	if err != nil {
		return s.refuse(err)
	}
	if s.idle == nil && s.err == nil {
		if done, err := t.soon(); done || err != nil {
			s.err, s.told = err, true
			return err
		}
	}
	s.enqueue(t)
	return nil
}

// newSend numbers a Send.
func (m *mail) newSend(l letter) *send {
	p := l.plan
	m.mu.Lock()
	number := m.count(l.c, &p.Call, l.after, l.c.done())
	m.mu.Unlock()
	return &send{letter: l, out: &m.outlets[p.Root], number: number, data: pointer(p.Send)}
}

// newReceive puts a Recv in its place among those of its tag.
func (m *mail) newReceive(l letter) *receive {
	p := l.plan
	r := &receive{letter: l}
	m.mu.Lock()
	m.count(l.c, &p.Call, l.after, l.c.done())
	m.open[r] = struct{}{}
	claimed(m.matcher.Post(r, p.Tag, p.Root, l.c.segment(l.after)))
	m.mu.Unlock()
	return r
}

// count numbers a message that is called after so many collectives, of which some are done. mu is
// held.
func (m *mail) count(c *communicator, call *driver.Call, after, done uint64) (number uint64) {
	tally, weight := &m.sent, message.Weight(call.Root, call.Tag)
	if call.Operation == driver.Recv {
		tally, weight = &m.awaited, -message.Weight(c.cfg.Rank, call.Tag)
	}
	if c.cfg.Strict {
		m.balance.Add(weight)
	}
	return tally.Count(message.Key{Peer: call.Root, Tag: call.Tag}, after, done)
}

// claimed tells receives which messages are theirs. mail.mu is held.
func claimed(claims []message.Claim[*receive]) {
	for _, claim := range claims {
		claim.Receive.source, claim.Receive.number = claim.Source, claim.Number
		claim.Receive.claimed.Store(true)
	}
}

// segment is what the matcher knows of a message that was called behind so many collectives.
func (c *communicator) segment(after uint64) uint64 {
	if !c.cfg.Strict {
		return 0
	}
	return after
}

// done returns how many collectives are done on this rank.
func (c *communicator) done() uint64 { return atomic.LoadUint64(&c.completed) }

// weigh puts this rank's balance next to its line, and returns the digest for the line.
func (c *communicator) weigh(digest uint64) uint64 {
	slot := c.step & 1
	if c.shown[slot] != c.balance {
		c.shown[slot] = c.balance
		spin.StoreRelease64(&c.me.lines[slot].balance, c.balance)
	}
	return digest ^ c.balance
}

// unbalanced says that the balances of the ranks do not add up to 0 at a collective, and what this
// rank has sent and received before.
func (c *communicator) unbalanced(collective uint64) error {
	return &driver.MessageError{
		Fault: driver.MessagesUnmatched, Group: c.cfg.Name(), Sequence: collective,
		Ends: c.MessagesBefore(collective),
	}
}

var _ driver.MessageCounts = (*communicator)(nil)

// MessagesBefore lists what this rank has sent and received before a collective.
func (c *communicator) MessagesBefore(collective uint64) (ends []driver.MessageEnds) {
	m, me := &c.mail, c.cfg.Ranks[c.cfg.Rank]
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.sent.Before(collective) {
		ends = append(ends, driver.MessageEnds{
			From: me, To: c.cfg.Ranks[n.Peer], Tag: n.Tag, Sent: n.Calls,
		})
	}
	for _, n := range m.awaited.Before(collective) {
		ends = append(ends, driver.MessageEnds{
			From: c.worldOf(n.Peer), To: me, Tag: n.Tag, Received: n.Calls,
		})
	}
	return ends
}

// worldOf is the world rank of a group rank or of AnySource.
func (c *communicator) worldOf(source int) int {
	if source == driver.AnySource {
		return source
	}
	return c.cfg.Ranks[source]
}

// errUnmatched says which messages end with the group: those that have come and that nobody has
// received, receives that have no message, and what a rank that has left did not take. It is called
// once the others can see that this rank has left: a message that comes later its sender finds.
func (c *communicator) errUnmatched() error {
	for source := range c.mail.inlets {
		if err := c.drain(source, nil); err != nil {
			return err
		}
	}
	var awaited []control.Awaited
	c.mail.mu.Lock()
	unclaimed := c.mail.matcher.Unclaimed()
	for r := range c.mail.open {
		a := control.Awaited{Source: r.plan.Root, Tag: r.plan.Tag, Number: r.number}
		if r.claimed.Load() {
			a.Source = r.source
		}
		awaited = append(awaited, a)
	}
	c.mail.mu.Unlock()
	var untaken []driver.MessageEnds
	for peer := range c.mail.outlets {
		untaken = append(untaken, c.untaken(peer)...)
	}
	return control.Unmatched(&c.cfg, unclaimed, awaited, untaken)
}

// flush waits until what Sends have left in memory of the heap is on its way. The wait for each
// peer is that of the goroutine which pushes it. It returns the fault of the group if that came
// meanwhile: then some of it was not delivered.
func (c *communicator) flush() error {
	before, waited := c.Cause(), false
	for i := range c.mail.outlets {
		for {
			idle := c.mail.outlets[i].pushing()
			if idle == nil {
				break
			}
			<-idle
			waited = true
		}
	}
	if waited && before == nil {
		return c.Cause()
	}
	return nil
}

// messageWait packs what a rank waits for into a word of its board: the operation, and the group
// rank of the peer plus 2, so that any source is 1.
func messageWait(o driver.Operation, peer int) uint64 { return uint64(o)<<32 | uint64(peer+2) }

// lingerFor is linger for a message. Others can see meanwhile what this rank waits for.
func (c *communicator) lingerFor(l *letter, w *waiting) error {
	b, word := &c.me.board, messageWait(l.plan.Operation, l.plan.Root)
	spin.StoreRelease64(&b.messageSince, sys.Monotonic())
	spin.StoreRelease64(&b.message, word)
	defer atomic.CompareAndSwapUint64(&b.message, word, 0)
	return c.linger(context.Background(), w)
}

// describeMessage says what a rank waits for in a message, or nothing.
func (b *board) describeMessage(ranks []int) string {
	word := spin.LoadAcquire64(&b.message)
	if word == 0 {
		return ""
	}
	waited := time.Duration(sys.Monotonic() - spin.LoadAcquire64(&b.messageSince)).
		Round(time.Millisecond)
	o, peer := driver.Operation(word>>32), int(word&0xffffffff)-2
	if peer < 0 || peer >= len(ranks) {
		return fmt.Sprintf("in %v from any rank for %v", o, waited)
	}
	if o == driver.Send {
		return fmt.Sprintf("in %v to rank %d of the world for %v", o, ranks[peer], waited)
	}
	return fmt.Sprintf("in %v from rank %d of the world for %v", o, ranks[peer], waited)
}

// skip fails the group over a message that is not run, since work before it on its stream failed:
// the peer would get what was never computed.
func (l *letter) skip(cause error) {
	if l.c.enter() != nil {
		return
	}
	defer l.c.leave()
	_ = l.c.fail(&driver.PriorError{
		Doing: l.doing(), Rank: l.c.cfg.Ranks[l.c.cfg.Rank], Cause: cause,
	})
}

// doing names the message for error messages.
func (l *letter) doing() string {
	p := l.plan
	preposition := "to"
	if p.Operation == driver.Recv {
		preposition = "from"
	}
	peer := "any rank"
	if p.Root != driver.AnySource {
		peer = fmt.Sprintf("rank %d of the world", l.c.cfg.Ranks[p.Root])
	}
	return fmt.Sprintf("%v of %d bytes with tag %d %s %s in group %s", p.Operation, p.bytes, p.Tag,
		preposition, peer, l.c.cfg.Name())
}

// tell wakes the threads of this rank that sleep.
func (c *communicator) tell() {
	if atomic.LoadInt32(&c.me.bell.sleeping) != 0 {
		atomic.AddUint32(&c.me.bell.word, 1)
		sys.FutexWake(&c.me.bell.word)
	}
}

// ringAt wakes a peer if it sleeps.
func (c *communicator) ringAt(peer int) {
	b := &c.blocks[peer].bell
	if atomic.LoadInt32(&b.sleeping) != 0 {
		atomic.AddUint32(&b.word, 1)
		sys.FutexWake(&b.word)
	}
}

// pollSoon polls a word for as long as a caller's own thread is kept by a message.
func (c *communicator) pollSoon(word *uint64, want uint64) bool {
	if spin.UntilAtLeast64(word, want, 0, c.budget.polls) {
		return true
	}
	for range messageYields {
		c.device.yield()
		if spin.LoadAcquire64(word) >= want {
			return true
		}
	}
	return false
}

// messageYields is how many turns a caller's own thread gives to others in a message: a few, since
// programs call Recv before the Send that the peer waits for.
const messageYields = 4
