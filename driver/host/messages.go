package host

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// messages matches the messages of a communicator with receives.
//
// Frames for a receive that does not run yet are stored on the heap. If the receiver does not take
// the frames of a Send, the rest of the message is copied to the heap and a goroutine of the group
// sends it. So no stream waits for a receive that is queued behind other work.
type messages struct {
	sendPipes []sendPipe // by group rank
	recvPipes []recvPipe // by group rank

	closing atomic.Bool // the group is closing

	matcher message.Matcher[*receive] // guarded by Counts.Mu
	open    map[*receive]struct{}     // receives that have not ended; guarded by Counts.Mu
}

// init makes the ends of the pipes.
func (m *messages) init(c *communicator, ranks int) {
	m.sendPipes, m.recvPipes = make([]sendPipe, ranks), make([]recvPipe, ranks)
	m.open = map[*receive]struct{}{}
	for source := range m.recvPipes {
		m.recvPipes[source].c, m.recvPipes[source].source = c, source
	}
}

// messageCall holds the call of a Send or Recv.
type messageCall struct {
	c    *communicator
	plan *plan
	// after is the number of earlier collectives of this rank.
	after uint64
	// check reports whether calls were compared at the time of the call.
	check bool
}

// transfer returns a numbered message for the plan.
func (p *plan) transfer() (transfer, error) {
	c := p.c
	c.Mu.Lock()
	if c.Closed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}
	c.launched[p.Path]++
	l := messageCall{c: c, plan: p, after: c.Tickets(), check: c.check.Load()}
	if p.Operation == driver.Send {
		// This precedes the publication of the next collective, which then tells the receiver that there
		// are no more earlier messages.
		box := c.pipe(c.cfg.Rank, p.Root)
		spin.StoreRelease64(&box.posted, box.posted+1)
	}
	c.Mu.Unlock()
	if p.Operation == driver.Send {
		return c.messages.newSend(l), nil
	}
	return c.messages.newReceive(l), nil
}

// transfer implements one end of a message.
type transfer interface {
	work
	// tryNow transfers as much as possible without waiting, and reports whether the message is done.
	tryNow() (done bool, err error)
}

// newSend numbers a Send.
func (m *messages) newSend(l messageCall) *send {
	p := l.plan
	l.c.Counts.Mu.Lock()
	number := l.c.CountMessage(&p.Call, l.after, l.c.turns.completed.Load())
	l.c.Counts.Mu.Unlock()
	return &send{messageCall: l, out: &m.sendPipes[p.Root], number: number, data: pointer(p.Send)}
}

// newReceive numbers a Recv and adds it to the matcher.
func (m *messages) newReceive(l messageCall) *receive {
	p := l.plan
	r := &receive{messageCall: l}
	l.c.Counts.Mu.Lock()
	l.c.CountMessage(&p.Call, l.after, l.c.turns.completed.Load())
	m.open[r] = struct{}{}
	claimed(m.matcher.Post(r, p.Tag, p.Root, control.MessageSegment(&l.c.cfg, l.after)))
	l.c.Counts.Mu.Unlock()
	return r
}

// claimed assigns matched messages to their receives. The caller holds Counts.Mu.
func claimed(claims []message.Claim[*receive]) {
	for _, claim := range claims {
		claim.Receive.source, claim.Receive.number = claim.Source, claim.Number
		claim.Receive.claimed.Store(true)
	}
}

// errUnmatched returns an error for messages without a receive, receives without a message, and
// messages that a rank did not read before it left. It is called after this rank has left the
// group, so that senders of later messages detect that themselves.
func (m *messages) errUnmatched(c *communicator) error {
	for source := range m.recvPipes {
		if err := m.recvPipes[source].drain(nil); err != nil {
			return err
		}
	}
	var awaited []control.Awaited
	c.Counts.Mu.Lock()
	unclaimed := m.matcher.Unclaimed()
	for r := range m.open {
		a := control.Awaited{Source: r.plan.Root, Tag: r.plan.Tag, Number: r.number}
		if r.claimed.Load() {
			a.Source = r.source
		}
		awaited = append(awaited, a)
	}
	c.Counts.Mu.Unlock()
	var untaken []driver.MessageEnds
	for peer := range m.sendPipes {
		untaken = append(untaken, m.sendPipes[peer].unreceived(c, peer)...)
	}
	return control.Unmatched(&c.cfg, unclaimed, awaited, untaken)
}

// flush waits until all messages on the heap are sent. The sending goroutine waits for at most the
// timeout from now on, or twice the timeout if it already waits. If the group fails meanwhile,
// flush returns the fault, and some data was not delivered.
func (m *messages) flush(c *communicator) error {
	m.closing.Store(true)
	before, waited := c.Cause(), false
	for i := range m.sendPipes {
		for {
			idle := m.sendPipes[i].pushing()
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

// skip fails the group because work before the message failed: the peer would receive data that
// was never computed.
func (l *messageCall) skip(cause error) {
	if l.c.BeginUse() != nil {
		return
	}
	defer l.c.EndUse()
	_ = l.c.Fail(&driver.PriorError{
		Doing: l.doing(), Rank: l.c.cfg.Ranks[l.c.cfg.Rank], Cause: cause,
	})
}

// failing fails the group with an error, and returns the group's fault. It ignores nil.
func (l *messageCall) failing(err error) error {
	if err == nil {
		return nil
	}
	return l.c.failed(err)
}

// waiting returns the description of a wait for the message.
func (l *messageCall) waiting(ready func() bool, from ...int) shm.MessageWait {
	return shm.MessageWait{
		Operation: l.plan.Operation, Peer: l.plan.Root, Ready: ready, From: from, Doing: l.doing,
	}
}

// doing describes the message for errors.
func (l *messageCall) doing() string {
	return control.DescribeMessage(&l.c.cfg, &l.plan.Call, 0)
}
