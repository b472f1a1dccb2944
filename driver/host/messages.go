package host

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// messages transfers a communicator's messages and matches Sends with Recvs.
//
// Frames that arrive before their Recv runs are stored on the receiver's heap. If the receiver does
// not read the frames of a Send, the sender copies the rest of the message to the sender's heap,
// from which a goroutine of the group sends it. Therefore, no stream waits for a Recv that is
// queued behind other work.
type messages struct {
	sendPipes []sendPipe // by group rank
	recvPipes []recvPipe // by group rank

	closing atomic.Bool // whether the group is closing

	matcher    message.Matcher[*receive] // guarded by Counts.Mu
	unfinished map[*receive]struct{}     // Recvs that have not completed; guarded by Counts.Mu
}

func (m *messages) init(c *communicator, ranks int) {
	m.sendPipes, m.recvPipes = make([]sendPipe, ranks), make([]recvPipe, ranks)
	m.unfinished = map[*receive]struct{}{}
	for source := range m.recvPipes {
		m.recvPipes[source].c, m.recvPipes[source].source = c, source
	}
}

type messageCall struct {
	c     *communicator
	plan  *plan
	after uint64 // number of this rank's collectives before this message
	check bool   // whether the group compared calls when this call was made
}

// transfer assigns a number to the plan's message and returns this rank's end of the message.
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
		// The count is published before the next collective, so that a receiver that sees the
		// collective knows how many messages preceded it.
		box := c.pipe(c.cfg.Rank, p.Root)
		spin.StoreRelease64(&box.posted, box.posted+1)
	}
	c.Mu.Unlock()
	if p.Operation == driver.Send {
		return c.messages.newSend(l), nil
	}
	return c.messages.newReceive(l), nil
}

// transfer is one end of a message.
type transfer interface {
	work
	// tryNow transfers as much as possible without waiting, and reports whether the message is
	// complete.
	tryNow() (done bool, err error)
}

func (m *messages) newSend(l messageCall) *send {
	p := l.plan
	l.c.Counts.Mu.Lock()
	number := l.c.CountMessage(&p.Call, l.after, l.c.turns.completed.Load())
	l.c.Counts.Mu.Unlock()
	return &send{messageCall: l, out: &m.sendPipes[p.Root], number: number, data: pointer(p.Send)}
}

func (m *messages) newReceive(l messageCall) *receive {
	p := l.plan
	r := &receive{messageCall: l}
	l.c.Counts.Mu.Lock()
	l.c.CountMessage(&p.Call, l.after, l.c.turns.completed.Load())
	m.unfinished[r] = struct{}{}
	assign(m.matcher.Post(r, p.Tag, p.Root, control.MessageSegment(&l.c.cfg, l.after)))
	l.c.Counts.Mu.Unlock()
	return r
}

func assign(claims []message.Claim[*receive]) {
	for _, claim := range claims {
		claim.Receive.source, claim.Receive.number = claim.Source, claim.Number
		claim.Receive.claimed.Store(true)
	}
}

// errUnmatched returns an error if a message had no Recv, if a Recv had no message, or if a peer
// left before it had read its messages. It is called after this rank has left the group, so peers
// that send to this rank afterwards notice that it has left, and report those messages.
func (m *messages) errUnmatched(c *communicator) error {
	for source := range m.recvPipes {
		if err := m.recvPipes[source].drain(nil); err != nil {
			return err
		}
	}
	var awaited []control.AwaitedRecv
	c.Counts.Mu.Lock()
	unclaimed := m.matcher.Unclaimed()
	for r := range m.unfinished {
		a := control.AwaitedRecv{Source: r.plan.Root, Tag: r.plan.Tag, Number: r.number}
		if r.claimed.Load() {
			a.Source = r.source
		}
		awaited = append(awaited, a)
	}
	c.Counts.Mu.Unlock()
	var unread []driver.MessageEnds
	for peer := range m.sendPipes {
		unread = append(unread, m.sendPipes[peer].unreceived(c, peer)...)
	}
	return control.UnmatchedError(&c.cfg, unclaimed, awaited, unread)
}

// flush waits until all messages on the sender's heap have been sent. If a receiver reads nothing,
// the goroutine that sends the messages gives up after one more timeout, or after two if it is
// already waiting. If the group fails before the data has been delivered, flush returns the fault.
func (m *messages) flush(c *communicator) error {
	m.closing.Store(true)
	before, waited := c.Cause(), false
	for i := range m.sendPipes {
		for {
			idle := m.sendPipes[i].backlogDone()
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

// skip makes the group fail because earlier work on the stream has failed. Otherwise, the peer
// would receive data that was never computed.
func (l *messageCall) skip(cause error) {
	if l.c.BeginUse() != nil {
		return
	}
	defer l.c.EndUse()
	_ = l.c.Fail(&driver.PriorError{
		InCall: l.doing(), Rank: l.c.cfg.Ranks[l.c.cfg.Rank], Cause: cause,
	})
}

// failIfErr makes the group fail unless err is nil, and returns the group's fault.
func (l *messageCall) failIfErr(err error) error {
	if err == nil {
		return nil
	}
	return l.c.failWith(err)
}

func (l *messageCall) messageWait(ready func() bool, sources ...int) shm.MessageWait {
	return shm.MessageWait{
		Operation: l.plan.Operation, Peer: l.plan.Root, Ready: ready, From: sources, CallText: l.doing,
	}
}

func (l *messageCall) doing() string {
	return control.DescribeMessage(&l.c.cfg, &l.plan.Call, 0)
}
