package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Streams on a GPU can wait for a message in two ways:
//
//   - A Recv waits for its message.
//   - A Send in a CUDA graph waits until its receiver has copied the message of the previous
//     launch, because all launches of the graph use the same memory.
//
// Such a wait never ends if, for example, the peer's process has exited. The functions below find
// this out. An End is a Send or a Recv of this rank that is unfinished. Its plan.Root is the peer,
// or AnySource.

// Examine looks for streams that wait for a message. It returns an error if such a wait can never
// end. It is called from time to time.
func (m *Messages) Examine() error {
	if m.messagePlane == nil { // the ranks cannot exchange messages
		return nil
	}

	m.inbox.mu.Lock()
	mustPrune := slices.ContainsFunc(m.unfinishedSends, (*End).isCapturedSend)
	m.inbox.mu.Unlock()
	if mustPrune {
		m.pruneSends() // removes the Sends that have completed
	}

	waiting, err := m.listWaiting()
	if err != nil {
		return err
	}

	for _, e := range waiting {
		if err := m.examineWait(e); err != nil {
			return err
		}
	}

	return nil
}

// listWaiting reads new message headers, and lists the Sends and Recvs on which streams still wait.
func (m *Messages) listWaiting() ([]*End, error) {
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.inbox.pruneReceives()
	err := m.inbox.readHeaders()
	// Build the list even after an error, because isWaiting notes the start of each wait.
	var waiting []*End
	for _, e := range m.inbox.recvsWithoutMessage {
		if m.inbox.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}

	for _, e := range m.unfinishedSends {
		if e.isCapturedSend() && m.inbox.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}

	return waiting, err
}

// examineWait returns an error if a stream's wait in a Send or Recv can never end.
func (m *Messages) examineWait(e *End) error {
	err := m.diagnose(e)
	if err == nil {
		return nil
	}

	// The message may have arrived during diagnose. All headers that the peer wrote before diagnose
	// looked at the peer are visible now.
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if err := m.inbox.readHeaders(); err != nil {
		return err
	}

	if !m.inbox.isWaiting(e) {
		return nil
	}

	isUnmatched := errors.As(err, new(*driver.MessageError)) // diagnose has found no message
	if isUnmatched && mayHaveMessage(m.inbox, e) {
		return nil
	}

	return err
}

// diagnose is the first check of examineWait. Its error can be outdated, because a message may
// arrive during the check. The caller must not hold inbox.mu.
func (m *Messages) diagnose(e *End) error {
	p := e.plan
	m.inbox.mu.Lock()
	isRecvWithoutMessage := !e.isCapturedSend() && !mayHaveMessage(m.inbox, e)
	m.inbox.mu.Unlock()
	// In a strict group, a Send matches only Recvs between the same collectives. If the sender has
	// called the next collective without a Send, there will be no message.
	needsMessageNow := m.Config.Strict && isRecvWithoutMessage
	if needsMessageNow && m.messagePlane.HasCalledMore(p.Root, e.After) {
		nextCollective := e.After + 1 // e.After is the number of collectives before the Recv
		return &driver.MessageError{
			Fault: driver.MessagesUnmatched, Group: m.Config.Name(), Number: nextCollective,
			Ends: m.MessagesBefore(nextCollective),
		}
	}

	return m.messagePlane.DiagnoseMessage(p.Root, e.waitStart, func() string {
		return control.DescribeMessage(m.Config, p.Call, e.Number)
	})
}

// mayHaveMessage reports whether this rank has read the header of the Recv's message, or of one
// that may be assigned to the Recv later. The caller must hold in.mu.
func mayHaveMessage(in *inbox, e *End) bool {
	return e.announcement != nil || in.hasCandidate(e)
}

// UnmatchedError returns an error that lists each Send without a Recv and each Recv without a
// Send. It is called before a group closes, and marks this rank's mailbox as closed.
func (m *Messages) UnmatchedError() error {
	if m.messagePlane == nil || m.Plane.Cause() != nil {
		return nil
	}

	unread := m.unreadByPeers()
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if m.inbox.mailbox == nil {
		return nil // the group has been torn down, and the mailbox freed
	}

	// All headers that peers wrote before the group began to close are visible now. The matcher
	// assigns messages to Recvs.
	const all = true // even messages whose data has not arrived
	readErr := m.inbox.readHeaders()
	passErr := m.inbox.passToMatcher(all)
	if readErr != nil || passErr != nil {
		return errors.Join(readErr, passErr)
	}

	// From now on, senders list the messages that this rank has not read.
	atomic.StoreUint32(&m.inbox.mailbox.wakeup().closed, 1)
	unreceived := m.inbox.matcher.Unclaimed()
	return control.UnmatchedError(m.Config, unreceived, awaitedRecvs(m.inbox), unread)
}

// unreadByPeers lists this rank's messages that peers had not read when they closed their
// mailboxes. If another call holds m.Mu, possibly during a long wait, the list is empty.
func (m *Messages) unreadByPeers() (unread []driver.MessageEnds) {
	if !m.Mu.TryLock() {
		return nil
	}

	defer m.Mu.Unlock()
	for peer := range m.outbox.peers {
		unread = append(unread, m.outbox.unreadMessages(peer)...)
	}

	return unread
}

// awaitedRecvs describes the Recvs of an inbox without a message. The caller must hold in.mu.
func awaitedRecvs(in *inbox) []control.AwaitedRecv {
	var awaited []control.AwaitedRecv
	for _, e := range in.recvsWithoutMessage {
		// Until a message is assigned to the Recv, Number is 0 and Source can be AnySource.
		a := control.AwaitedRecv{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.number}
		if e.isAssigned {
			a.Source = e.source
		}

		awaited = append(awaited, a)
	}

	return awaited
}

// MessagesBefore lists the messages that this rank sent and received before a collective.
func (m *Messages) MessagesBefore(collective uint64) []driver.MessageEnds {
	if m.messagePlane == nil {
		return nil
	}

	return m.messagePlane.MessagesBefore(collective)
}
