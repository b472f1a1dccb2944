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
// them to a pipe, a ring buffer in shared memory. If the receiver does not read in time, the Send
// moves the rest to a backlog on the heap and ends.
//
// The messages in a pipe with the same tag are numbered from 1. The matcher assigns a number to
// each Recv.
type messages struct {
	comm      *communicator
	sendPipes []sendPipe // by group rank of the receiver
	recvPipes []recvPipe // by group rank of the sender

	isClosing atomic.Bool // set by Close; the group then fails if a receiver does not read in time

	matcher         message.Matcher[*recvCall] // guarded by comm.Counts.Mu
	unfinishedRecvs map[*recvCall]struct{}     // guarded by comm.Counts.Mu
}

func (m *messages) init(c *communicator, ranks int) {
	m.comm = c
	m.sendPipes = make([]sendPipe, ranks)
	m.recvPipes = make([]recvPipe, ranks)
	m.unfinishedRecvs = map[*recvCall]struct{}{}
	for source := range m.recvPipes {
		pipe := &m.recvPipes[source]
		pipe.comm = c
		pipe.source = source
	}
}

// messageWork is a Send or a Recv.
type messageWork interface {
	work
	// transferNow transfers as much as possible without a long wait, and reports whether the message
	// is complete. callerWaits means that the launching goroutine is about to call Synchronize.
	transferNow(callerWaits bool) (done bool, err error)
}

type messageCall struct {
	comm             *communicator
	plan             *plan
	priorCollectives uint64 // collectives that this rank called before the message
	checkCalls       bool   // whether to compare the arguments of the Send and the Recv
}

func (p *plan) newMessageWork() (messageWork, error) {
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
		receiver := p.Root
		shared := c.pipe(c.cfg.Rank, receiver)
		// Under Mu, so that peers see the new count before a later collective.
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
	lastCompleted := c.turns.lastCompleted.Load()
	number := c.CountMessage(&p.Call, call.priorCollectives, lastCompleted)
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
	lastCompleted := c.turns.lastCompleted.Load()
	_ = c.CountMessage(&p.Call, call.priorCollectives, lastCompleted) // the matcher sets r.number
	m.unfinishedRecvs[r] = struct{}{}
	claims := m.matcher.Post(
		r, p.Tag, p.Root, control.MessageSegment(&c.cfg, call.priorCollectives))
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

// messageWait describes a wait until the awaited group ranks make isReady return true.
func (call *messageCall) messageWait(isReady func() bool, awaited ...int) shm.MessageWait {
	return shm.MessageWait{
		Operation: call.plan.Operation, Peer: call.plan.Root, IsReady: isReady, Awaited: awaited,
		CallText: call.describe,
	}
}

func (call *messageCall) describe() string {
	const unknownNumber = 0
	return control.DescribeMessage(&call.comm.cfg, &call.plan.Call, unknownNumber)
}

// skip makes the group fail, because the message cannot be transferred.
func (call *messageCall) skip(cause error) {
	hasLeftGroup := call.comm.BeginUse() != nil
	if hasLeftGroup {
		return
	}

	defer call.comm.EndUse()
	cfg := &call.comm.cfg
	_ = call.comm.Fail(&driver.PriorError{
		InCall: call.describe(), Rank: cfg.Ranks[cfg.Rank], Cause: cause,
	})
}

// failIfErr returns nil for a nil error. Otherwise, it makes the group fail and returns the group's
// first fault.
func (call *messageCall) failIfErr(err error) error {
	if err == nil {
		return nil
	}

	return call.comm.failWith(err)
}

// readArrived reads all frames that have arrived.
func (m *messages) readArrived() error {
	for source := range m.recvPipes {
		if err := m.recvPipes[source].readAll(); err != nil {
			return err
		}
	}

	return nil
}

// hasIncomplete reports whether data is in transit, or a message or a Recv is unmatched.
func (m *messages) hasIncomplete() bool {
	for peer := range m.recvPipes {
		pipe := &m.recvPipes[peer]
		pipe.mu.Lock()
		isReceiving := len(pipe.incoming) > 0
		pipe.mu.Unlock()
		isSending := m.sendPipes[peer].backlogSentChannel() != nil
		if isReceiving || isSending {
			return true
		}
	}

	counts := &m.comm.Counts
	counts.Mu.Lock()
	defer counts.Mu.Unlock()
	return len(m.unfinishedRecvs) > 0 || len(m.matcher.Unclaimed()) > 0
}

// waitUntilSent waits until all backlogs have been sent. It returns the group's fault if the group
// fails during the wait.
func (m *messages) waitUntilSent() error {
	m.isClosing.Store(true)
	causeBefore := m.comm.Cause()
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

	if hasWaited && causeBefore == nil {
		return m.comm.Cause()
	}

	return nil
}

// unmatchedError lists messages without a Recv, Recvs without a message, and messages that a peer
// left unread. Call it after LeaveGroup, so that senders report messages that arrive later.
func (m *messages) unmatchedError() error {
	if err := m.readArrived(); err != nil {
		return err
	}

	c := m.comm
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
