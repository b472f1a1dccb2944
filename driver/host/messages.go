package host

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// messages transfers a communicator's messages in frames and matches Sends with Recvs.
//
// Frames that arrive before their Recv runs are stored on the receiver's heap. If the receiver does
// not read frames, the sender copies the rest of the message to its heap, and a goroutine sends it.
// No stream waits for a Recv that is queued behind other work.
type messages struct {
	sendPipes []sendPipe // by group rank
	recvPipes []recvPipe // by group rank

	closing atomic.Bool

	matcher    message.Matcher[*recvCall] // guarded by Counts.Mu
	unfinished map[*recvCall]struct{}     // guarded by Counts.Mu
}

func (m *messages) init(c *communicator, ranks int) {
	m.sendPipes, m.recvPipes = make([]sendPipe, ranks), make([]recvPipe, ranks)
	m.unfinished = map[*recvCall]struct{}{}
	for source := range m.recvPipes {
		m.recvPipes[source].comm, m.recvPipes[source].source = c, source
	}
}

type messageCall struct {
	comm  *communicator
	plan  *plan
	after uint64 // number of this rank's collectives before this message
	check bool   // whether the group compared calls when this call was made
}

// transfer assigns a number to the plan's message and returns this rank's end of the message.
func (p *plan) transfer() (transfer, error) {
	c := p.comm
	c.Mu.Lock()
	if c.Closed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}
	c.launched[p.Path]++
	call := messageCall{comm: c, plan: p, after: c.Tickets(), check: c.check.Load()}
	if p.Operation == driver.Send {
		// A receiver that sees the next collective must also see this count.
		shared := c.pipe(c.cfg.Rank, p.Root)
		spin.StoreRelease64(&shared.posted, shared.posted+1)
	}
	c.Mu.Unlock()
	if p.Operation == driver.Send {
		return c.messages.newSend(call), nil
	}
	return c.messages.newReceive(call), nil
}

// transfer is one end of a message.
type transfer interface {
	work
	// tryNow transfers as much as possible without waiting, and reports whether the message is
	// complete.
	tryNow() (done bool, err error)
}

func (m *messages) newSend(call messageCall) *sendCall {
	p := call.plan
	call.comm.Counts.Mu.Lock()
	number := call.comm.CountMessage(&p.Call, call.after, call.comm.turns.completed.Load())
	call.comm.Counts.Mu.Unlock()
	return &sendCall{
		messageCall: call, pipe: &m.sendPipes[p.Root], number: number, data: pointer(p.Send),
	}
}

func (m *messages) newReceive(call messageCall) *recvCall {
	p := call.plan
	r := &recvCall{messageCall: call}
	call.comm.Counts.Mu.Lock()
	call.comm.CountMessage(&p.Call, call.after, call.comm.turns.completed.Load())
	m.unfinished[r] = struct{}{}
	assign(m.matcher.Post(r, p.Tag, p.Root, control.MessageSegment(&call.comm.cfg, call.after)))
	call.comm.Counts.Mu.Unlock()
	return r
}

func assign(claims []message.Claim[*recvCall]) {
	for _, claim := range claims {
		claim.Receive.source, claim.Receive.number = claim.Source, claim.Number
		claim.Receive.claimed.Store(true)
	}
}

// errUnmatched returns an error if a message has no Recv, a Recv has no message, or a peer left
// before it had read its messages. This rank must have left the group before the call, so that
// peers that send to this rank later report their messages.
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

// flush waits until all messages on the sender's heap have been sent. It gives up after at most two
// timeouts if a receiver reads nothing. If the group fails in the meantime, flush returns the
// fault.
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

// skip makes the group fail, because the peer would otherwise receive data that was never computed.
func (call *messageCall) skip(cause error) {
	if call.comm.BeginUse() != nil {
		return
	}
	defer call.comm.EndUse()
	_ = call.comm.Fail(&driver.PriorError{
		InCall: call.doing(), Rank: call.comm.cfg.Ranks[call.comm.cfg.Rank], Cause: cause,
	})
}

func (call *messageCall) failIfErr(err error) error {
	if err == nil {
		return nil
	}
	return call.comm.failWith(err)
}

func (call *messageCall) messageWait(ready func() bool, sources ...int) shm.MessageWait {
	return shm.MessageWait{
		Operation: call.plan.Operation, Peer: call.plan.Root, Ready: ready, From: sources,
		CallText: call.doing,
	}
}

func (call *messageCall) doing() string {
	return control.DescribeMessage(&call.comm.cfg, &call.plan.Call, 0)
}
