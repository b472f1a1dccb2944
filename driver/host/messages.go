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
// Frames for a receive that is not running yet are kept on the heap. A Send whose frames are not
// taken leaves the rest there for a goroutine of the group. So no stream waits for a receive that
// is queued behind other work.
type messages struct {
	sendPipes []sendPipe // by group rank
	recvPipes []recvPipe // by group rank

	closing atomic.Bool // whether the group closes

	matcher message.Matcher[*receive] // guarded by Counts.Mu
	open    map[*receive]struct{}     // receives that have no message yet; guarded by Counts.Mu
}

// init makes the ends of the pipes of a communicator.
func (m *messages) init(c *communicator, ranks int) {
	m.sendPipes, m.recvPipes = make([]sendPipe, ranks), make([]recvPipe, ranks)
	m.open = map[*receive]struct{}{}
	for source := range m.recvPipes {
		m.recvPipes[source].c, m.recvPipes[source].source = c, source
	}
}

// messageCall is a Send or Recv that was called.
type messageCall struct {
	c    *communicator
	plan *plan
	// after is how many collectives this rank had called before.
	after uint64
	// check reports whether calls are compared, as it was at the call.
	check bool
}

// transfer makes a message of the plan and gives it its number.
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
		// Before the next collective is shown, so that the receiver knows that no more will come.
		box := c.pipe(c.cfg.Rank, p.Root)
		spin.StoreRelease64(&box.posted, box.posted+1)
	}
	c.Mu.Unlock()
	if p.Operation == driver.Send {
		return c.messages.newSend(l), nil
	}
	return c.messages.newReceive(l), nil
}

// transfer is a message under way.
type transfer interface {
	work
	// tryNow does what can be done without a wait, and reports whether that was all.
	tryNow() (done bool, err error)
}

// newSend numbers a Send.
func (m *messages) newSend(l messageCall) *send {
	p := l.plan
	l.c.Counts.Mu.Lock()
	number := l.c.CountMessage(&p.Call, l.after, l.c.completed.Load())
	l.c.Counts.Mu.Unlock()
	return &send{messageCall: l, out: &m.sendPipes[p.Root], number: number, data: pointer(p.Send)}
}

// newReceive puts a Recv in its place among those of its tag.
func (m *messages) newReceive(l messageCall) *receive {
	p := l.plan
	r := &receive{messageCall: l}
	l.c.Counts.Mu.Lock()
	l.c.CountMessage(&p.Call, l.after, l.c.completed.Load())
	m.open[r] = struct{}{}
	claimed(m.matcher.Post(r, p.Tag, p.Root, control.MessageSegment(&l.c.cfg, l.after)))
	l.c.Counts.Mu.Unlock()
	return r
}

// claimed passes claimed messages to their receives. Counts.Mu is held.
func claimed(claims []message.Claim[*receive]) {
	for _, claim := range claims {
		claim.Receive.source, claim.Receive.number = claim.Source, claim.Number
		claim.Receive.claimed.Store(true)
	}
}

// errUnmatched lists the messages that end with the group: arrived ones without a receive, receives
// without a message, and messages that a rank did not take before it left. It is called once the
// others can see that this rank has left; the sender of a later message finds out by then.
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

// flush waits until the data that Sends have left on the heap is pushed. The pushing goroutine
// waits for at most the timeout from now on, or twice that if it is waiting already. flush returns
// the fault of the group if one occurs meanwhile: then some data was not delivered.
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

// skip fails the group over a message that is not run, since work before it on its stream failed:
// the peer would get what was never computed.
func (l *messageCall) skip(cause error) {
	if l.c.BeginUse() != nil {
		return
	}
	defer l.c.EndUse()
	_ = l.c.Fail(&driver.PriorError{
		Doing: l.doing(), Rank: l.c.cfg.Ranks[l.c.cfg.Rank], Cause: cause,
	})
}

// failing is failed for an error that may be nil.
func (l *messageCall) failing(err error) error {
	if err == nil {
		return nil
	}
	return l.c.failed(err)
}

// waiting describes a wait for the message.
func (l *messageCall) waiting(ready func() bool, from ...int) shm.MessageWait {
	return shm.MessageWait{
		Operation: l.plan.Operation, Peer: l.plan.Root, Ready: ready, From: from, Doing: l.doing,
	}
}

// doing names the message for error messages.
func (l *messageCall) doing() string {
	return control.DescribeMessage(&l.c.cfg, &l.plan.Call, 0)
}
