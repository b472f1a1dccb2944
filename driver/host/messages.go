package host

import (
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/shm"
	"symmem/internal/message"
	"symmem/internal/spin"
)

// messages transfers data between pairs of ranks. A Send splits its message into frames and writes
// them to a pipe, a ring buffer in shared memory. If the receiver does not read in time, the rest
// moves to a backlog on the sender's heap, so that a Send can end without its Recv.
//
// Messages with the same sender and tag are numbered from 1, and the receiver's matcher assigns one
// to each Recv. Frames that arrive before the Recv are kept on the receiver's heap.
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
	// transferNow transfers as much as possible without long waits, and reports whether this
	// completes the message. callerWaits means that the caller would wait for it next.
	transferNow(callerWaits bool) (done bool, err error)
}

type messageCall struct {
	comm             *communicator
	plan             *plan
	priorCollectives uint64 // number of collectives that this rank called before
	checkCalls       bool   // compare the arguments of the Send and the Recv
}

// newMessageWork returns the work of a Send or Recv.
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
		// Publish the count before the next collective, which needs c.Mu, can start.
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
	// Ignore the result, because the matcher assigns the number.
	c.CountMessage(&p.Call, call.priorCollectives, c.turns.lastCompleted.Load())
	m.unfinishedRecvs[r] = struct{}{}
	segment := control.MessageSegment(&c.cfg, call.priorCollectives)
	claims := m.matcher.Post(r, p.Tag, p.Root, segment)
	assignMessages(claims)
	return r
}

func assignMessages(claims []message.Claim[*recvCall]) {
	for _, claim := range claims {
		r := claim.Receive
		r.source = claim.Source
		r.number = claim.Number
		r.claimed.Store(true) // publishes source and number to other goroutines
	}
}

// messageWait describes a wait for ready, which only the awaited group ranks can end.
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

// skip makes the group fail, because the message is lost or its data was never computed.
func (call *messageCall) skip(cause error) {
	hasLeftGroup := call.comm.BeginUse() != nil
	if hasLeftGroup {
		return
	}

	defer call.comm.EndUse()
	_ = call.comm.Fail(&driver.PriorError{
		InCall: call.describe(), Rank: call.comm.cfg.Ranks[call.comm.cfg.Rank], Cause: cause,
	})
}

// failIfErr makes the group fail if err is not nil. It then returns the group's first fault.
func (call *messageCall) failIfErr(err error) error {
	if err == nil {
		return nil
	}

	return call.comm.failWith(err)
}

// waitUntilSent waits for the backlogs. If a receiver reads nothing for two timeouts, the group
// fails. The result is the fault if the group fails during the wait.
func (m *messages) waitUntilSent(c *communicator) error {
	m.isClosing.Store(true)
	earlierFault := c.Cause()
	hasWaited := false
	for i := range m.sendPipes {
		for { // a new backlog can begin during the wait
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

// unmatchedError lists messages without a Recv, Recvs without a message, and messages that a peer
// left unread. Call it after LeaveGroup, when senders report what this rank leaves unread.
func (m *messages) unmatchedError(c *communicator) error {
	for source := range m.recvPipes {
		if err := m.recvPipes[source].readFrames(nil); err != nil {
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

// The caller must hold Counts.Mu.
func (m *messages) awaitedRecvs() []control.AwaitedRecv {
	var awaited []control.AwaitedRecv
	for r := range m.unfinishedRecvs {
		recv := control.AwaitedRecv{Source: r.plan.Root, Tag: r.plan.Tag, Number: r.number}
		if r.claimed.Load() {
			recv.Source = r.source // Root may be AnySource
		}

		awaited = append(awaited, recv)
	}

	return awaited
}
