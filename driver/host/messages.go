package host

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// messages transfers messages, each of which has two ends: a Send and a Recv.
//
// For example, rank 0 sends 1 MiB to rank 1. The Send divides the message into frames of a fixed
// size. It writes them to a pipe in shared memory, which has room for a few frames. If the Recv is
// running, it copies frames from the pipe to its buffer.
//
// A Send does not wait for the Recv. If the receiver reads frames before the Recv, it stores them
// on its heap. If it reads no frames, the Send copies the rest of the message to the heap of the
// sender. This rest joins the pipe's backlog, which a goroutine sends.
//
// Messages with the same sender and tag are numbered from 1. The matcher assigns a message to each
// Recv. The Recv has then claimed the message.
type messages struct {
	sendPipes []sendPipe // by group rank of the receiver
	recvPipes []recvPipe // by group rank of the sender

	isClosing atomic.Bool // set by waitUntilSent

	matcher         message.Matcher[*recvCall] // guarded by Counts.Mu
	unfinishedRecvs map[*recvCall]struct{}     // guarded by Counts.Mu
}

func (m *messages) init(c *communicator, ranks int) {
	m.sendPipes = make([]sendPipe, ranks)
	m.recvPipes = make([]recvPipe, ranks)
	m.unfinishedRecvs = map[*recvCall]struct{}{}
	for source := range m.recvPipes {
		pipe := &m.recvPipes[source]
		pipe.comm = c
		pipe.source = source
	}
}

// messageEnd is the work of a Send or a Recv.
type messageEnd interface {
	work
	// transferNow transfers as much as possible without long waits. callerWaits is set if the
	// caller is about to wait for the message. done reports whether the transfer is complete.
	transferNow(callerWaits bool) (done bool, err error)
}

// messageCall holds the fields that Sends and Recvs have in common.
type messageCall struct {
	comm             *communicator
	plan             *plan
	priorCollectives uint64 // number of this rank's collectives before this message
	checkCalls       bool   // whether the group compares calls
}

// newMessageWork counts a Send or Recv and returns the work that runs it.
func (p *plan) newMessageWork() (messageEnd, error) {
	c := p.comm
	isSend := p.Operation == driver.Send
	c.Mu.Lock()
	if c.Closed() {
		c.Mu.Unlock()
		return nil, c.Cause()
	}

	c.callCounts[p.Path]++
	call := messageCall{
		comm: c, plan: p, priorCollectives: c.LastTicket(), checkCalls: c.checkCalls.Load(),
	}
	if isSend {
		// Count the Send while c.Mu is held, before the next collective can get its number. A receiver
		// that sees the collective must see the count, too.
		shared := c.pipe(c.cfg.Rank, p.Root) // p.Root is the receiver of a Send
		spin.StoreRelease64(&shared.sendCount, shared.sendCount+1)
	}

	c.Mu.Unlock()
	if isSend {
		return c.messages.newSend(call), nil
	}

	return c.messages.newRecv(call), nil
}

func (m *messages) newSend(call messageCall) *sendCall {
	c, p := call.comm, call.plan
	c.Counts.Mu.Lock()
	number := c.CountMessage(&p.Call, call.priorCollectives, c.turns.lastCompleted.Load())
	c.Counts.Mu.Unlock()
	return &sendCall{
		messageCall: call, pipe: &m.sendPipes[p.Root], number: number, data: pointer(p.Send),
	}
}

func (m *messages) newRecv(call messageCall) *recvCall {
	c, p := call.comm, call.plan
	r := &recvCall{messageCall: call}
	c.Counts.Mu.Lock()
	defer c.Counts.Mu.Unlock()
	// Ignore the number of this Recv: the matcher assigns the number of a message.
	c.CountMessage(&p.Call, call.priorCollectives, c.turns.lastCompleted.Load())
	m.unfinishedRecvs[r] = struct{}{}
	// In a strict group, a Recv matches only Sends after the same number of collectives.
	segment := control.MessageSegment(&c.cfg, call.priorCollectives)
	claims := m.matcher.Post(r, p.Tag, p.Root, segment)
	assignMessages(claims)
	return r
}

// assignMessages informs Recvs of the messages that the matcher has assigned to them.
func assignMessages(claims []message.Claim[*recvCall]) {
	for _, claim := range claims {
		r := claim.Receive
		r.source = claim.Source
		r.number = claim.Number
		r.claimed.Store(true) // after the fields, which other goroutines then read
	}
}

// messageWait describes a wait until ready returns true. awaited lists the group ranks that can end
// the wait.
func (call *messageCall) messageWait(ready func() bool, awaited ...int) shm.MessageWait {
	return shm.MessageWait{
		Operation: call.plan.Operation, Peer: call.plan.Root, IsReady: ready, Awaited: awaited,
		CallText: call.describe,
	}
}

func (call *messageCall) describe() string {
	const unknownNumber = 0
	return control.DescribeMessage(&call.comm.cfg, &call.plan.Call, unknownNumber)
}

// skip makes the group fail, because the peer would otherwise receive data that was never computed.
func (call *messageCall) skip(cause error) {
	if call.comm.BeginUse() != nil {
		return // this rank has left the group
	}

	defer call.comm.EndUse()
	_ = call.comm.Fail(&driver.PriorError{
		InCall: call.describe(), Rank: call.comm.cfg.Ranks[call.comm.cfg.Rank], Cause: cause,
	})
}

// failIfErr makes the group fail if err is not nil, and returns the group's first fault.
func (call *messageCall) failIfErr(err error) error {
	if err == nil {
		return nil
	}

	return call.comm.failWith(err)
}

// waitUntilSent waits until the backlogs of all pipes have been sent. If a receiver reads nothing,
// it waits for at most two timeouts. If the group fails during the wait, it returns the fault.
func (m *messages) waitUntilSent(c *communicator) error {
	m.isClosing.Store(true)
	earlierFault := c.Cause()
	hasWaited := false
	for i := range m.sendPipes {
		for { // a new backlog can begin while the first is being sent
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

// unmatchedError returns an error if the group ends with incomplete messages: messages without a
// Recv, Recvs without a message, and messages that a peer had not read when it left.
//
// Call it after this rank has left the group. Senders that find this rank gone then report the
// messages that it misses.
func (m *messages) unmatchedError(c *communicator) error {
	for source := range m.recvPipes {
		if err := m.recvPipes[source].readFrames(nil); err != nil { // not for a particular Recv
			return err
		}
	}

	c.Counts.Mu.Lock()
	unclaimed := m.matcher.Unclaimed()
	awaitedRecvs := m.awaitedRecvs()
	c.Counts.Mu.Unlock()
	var unreadMessages []driver.MessageEnds
	for peer := range m.sendPipes {
		unread := m.sendPipes[peer].unreadMessages(c, peer)
		unreadMessages = append(unreadMessages, unread...)
	}

	return control.UnmatchedError(&c.cfg, unclaimed, awaitedRecvs, unreadMessages)
}

// awaitedRecvs describes the unfinished Recvs. The caller must hold Counts.Mu.
func (m *messages) awaitedRecvs() []control.AwaitedRecv {
	var awaited []control.AwaitedRecv
	for r := range m.unfinishedRecvs {
		// Until the Recv has claimed a message, Number is 0 and Source can be AnySource.
		recv := control.AwaitedRecv{Source: r.plan.Root, Tag: r.plan.Tag, Number: r.number}
		if r.claimed.Load() {
			recv.Source = r.source
		}

		awaited = append(awaited, recv)
	}

	return awaited
}
