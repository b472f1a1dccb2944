package host

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// messages matches Sends with Recvs and transfers their data in frames.
//
// The receiver stores frames that arrive before their Recv on its heap. If the receiver reads no
// frames, the sender copies the rest of the message to its own heap, from which a goroutine sends
// it. A Send therefore does not block its stream until the Recv is called.
type messages struct {
	sendPipes []sendPipe // by group rank
	recvPipes []recvPipe // by group rank

	isClosing atomic.Bool // set by waitUntilSent

	matcher         message.Matcher[*recvCall] // guarded by Counts.Mu
	unfinishedRecvs map[*recvCall]struct{}     // guarded by Counts.Mu
}

func (m *messages) init(c *communicator, ranks int) {
	m.sendPipes, m.recvPipes = make([]sendPipe, ranks), make([]recvPipe, ranks)
	m.unfinishedRecvs = map[*recvCall]struct{}{}
	for source := range m.recvPipes {
		m.recvPipes[source].comm, m.recvPipes[source].source = c, source
	}
}

// messageCall holds what Sends and Recvs have in common.
type messageCall struct {
	comm             *communicator
	plan             *plan
	priorCollectives uint64 // number of this rank's collectives before this message
	checkCalls       bool   // whether the group compares calls
}

func (p *plan) newMessageWork() (messageEnd, error) {
	c := p.comm
	c.Mu.Lock()
	if c.Closed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}
	c.callCounts[p.Path]++
	call := messageCall{
		comm: c, plan: p, priorCollectives: c.LastTicket(), checkCalls: c.checkCalls.Load(),
	}
	if p.Operation == driver.Send {
		// Count the Send while c.Mu is held, before the next collective gets a ticket. A receiver
		// that sees the collective must see the count, too.
		shared := c.pipe(c.cfg.Rank, p.Root)
		spin.StoreRelease64(&shared.sendCount, shared.sendCount+1)
	}
	c.Mu.Unlock()
	if p.Operation == driver.Send {
		return c.messages.newSend(call), nil
	}
	return c.messages.newReceive(call), nil
}

// messageEnd is a Send or a Recv.
type messageEnd interface {
	work
	// transferNow transfers as much as possible without long waits. callerWaits is set if the
	// caller is about to wait for the message. done reports whether the transfer is complete.
	transferNow(callerWaits bool) (done bool, err error)
}

func (m *messages) newSend(call messageCall) *sendCall {
	p := call.plan
	call.comm.Counts.Mu.Lock()
	number := call.comm.CountMessage(&p.Call, call.priorCollectives,
		call.comm.turns.lastCompleted.Load())
	call.comm.Counts.Mu.Unlock()
	return &sendCall{
		messageCall: call, pipe: &m.sendPipes[p.Root], number: number, data: pointer(p.Send),
	}
}

func (m *messages) newReceive(call messageCall) *recvCall {
	p := call.plan
	r := &recvCall{messageCall: call}
	call.comm.Counts.Mu.Lock()
	call.comm.CountMessage(&p.Call, call.priorCollectives, call.comm.turns.lastCompleted.Load())
	m.unfinishedRecvs[r] = struct{}{}
	segment := control.MessageSegment(&call.comm.cfg, call.priorCollectives)
	assignMessages(m.matcher.Post(r, p.Tag, p.Root, segment))
	call.comm.Counts.Mu.Unlock()
	return r
}

// assignMessages informs Recvs of the messages that the matcher has assigned to them.
func assignMessages(claims []message.Claim[*recvCall]) {
	for _, claim := range claims {
		claim.Receive.source, claim.Receive.number = claim.Source, claim.Number
		claim.Receive.claimed.Store(true)
	}
}

// unmatchedError returns an error for messages without a Recv, Recvs without a message, and
// messages that a peer had not read when it left. This rank must already have left the group, so
// that later senders report their messages.
func (m *messages) unmatchedError(c *communicator) error {
	for source := range m.recvPipes {
		if err := m.recvPipes[source].readFrames(nil); err != nil {
			return err
		}
	}
	var awaitedRecvs []control.AwaitedRecv
	c.Counts.Mu.Lock()
	unclaimed := m.matcher.Unclaimed()
	for r := range m.unfinishedRecvs {
		recv := control.AwaitedRecv{Source: r.plan.Root, Tag: r.plan.Tag, Number: r.number}
		if r.claimed.Load() {
			recv.Source = r.source
		}
		awaitedRecvs = append(awaitedRecvs, recv)
	}
	c.Counts.Mu.Unlock()
	var unreadMessages []driver.MessageEnds
	for peer := range m.sendPipes {
		unreadMessages = append(unreadMessages, m.sendPipes[peer].unreadMessages(c, peer)...)
	}
	return control.UnmatchedError(&c.cfg, unclaimed, awaitedRecvs, unreadMessages)
}

// waitUntilSent waits until the backlogs of all pipes have been sent, or for at most two timeouts
// if a receiver reads nothing. If the group fails during the wait, it returns the fault.
func (m *messages) waitUntilSent(c *communicator) error {
	m.isClosing.Store(true)
	earlierFault := c.Cause()
	hasWaited := false
	for i := range m.sendPipes {
		for {
			sent := m.sendPipes[i].backlogSentChannel()
			if sent == nil {
				break
			}
			<-sent
			hasWaited = true
		}
	}
	if hasWaited && earlierFault == nil {
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
		InCall: call.describe(), Rank: call.comm.cfg.Ranks[call.comm.cfg.Rank], Cause: cause,
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
		Operation: call.plan.Operation, Peer: call.plan.Root, IsReady: ready, Awaited: sources,
		CallText: call.describe,
	}
}

func (call *messageCall) describe() string {
	return control.DescribeMessage(&call.comm.cfg, &call.plan.Call, 0)
}
