package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Examine looks for streams that wait for a message. It returns an error if such a wait can never
// end, for example because the peer's process has exited. It is called from time to time.
//
// Two kinds of work can wait: a Recv for its message, and a Send in a CUDA graph. All launches of
// the graph use the same memory, so a Send waits until the message of the previous launch has been
// copied.
func (m *Messages) Examine() error {
	if m.messagePlane == nil { // the ranks cannot exchange messages
		return nil
	}

	m.inbox.mu.Lock()
	mustPrune := slices.ContainsFunc(m.unfinishedSends, (*End).isCapturedSend)
	m.inbox.mu.Unlock()
	if mustPrune {
		m.pruneSends() // launches may have completed
	}

	waiting, err := m.listWaiting()
	if err != nil {
		return err
	}

	for _, e := range waiting {
		if err := m.examineMessage(e); err != nil {
			return err
		}
	}

	return nil
}

// listWaiting reads new headers, and lists the Sends and Recvs on which streams still wait.
func (m *Messages) listWaiting() ([]*End, error) {
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.inbox.pruneReceives()
	err := m.inbox.readHeaders()
	// List them even after an error, because isWaiting notes the start of a wait.
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

// examineMessage returns an error if the wait of a stream for a Send or Recv can never end.
func (m *Messages) examineMessage(e *End) error {
	err := m.diagnose(e)
	if err == nil {
		return nil
	}

	// Check again: all headers that the peer had written by the first check are visible now.
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if err := m.inbox.readHeaders(); err != nil {
		return err
	}

	if !m.inbox.isWaiting(e) {
		return nil
	}

	hasMessage := e.announcement != nil || m.inbox.hasCandidate(e)
	isUnmatched := errors.As(err, new(*driver.MessageError))
	if isUnmatched && hasMessage {
		return nil
	}

	return err
}

// diagnose is the first check of examineMessage. Its error can be outdated, because the message may
// have arrived during the check.
func (m *Messages) diagnose(e *End) error {
	p := e.plan
	m.inbox.mu.Lock()
	hasMessage := e.announcement != nil || m.inbox.hasCandidate(e)
	m.inbox.mu.Unlock()
	// In a strict group, a Send matches only Recvs between the same collectives. If the sender has
	// called the next collective without a Send, there will be no message.
	isUnmatched := m.Config.Strict && !e.isCapturedSend() && !hasMessage
	if isUnmatched && m.messagePlane.HasCalledMore(p.Root, e.After) {
		return &driver.MessageError{
			Fault: driver.MessagesUnmatched, Group: m.Config.Name(), Number: e.After + 1,
			Ends: m.MessagesBefore(e.After + 1),
		}
	}

	return m.messagePlane.DiagnoseMessage(p.Root, e.waitStart, func() string {
		return control.DescribeMessage(m.Config, p.Call, e.Number)
	})
}

// UnmatchedError returns an error that lists each Send without a Recv and each Recv without a
// Send. It is called before a group closes, and marks this rank's mailbox as closed.
func (m *Messages) UnmatchedError() error {
	if m.messagePlane == nil || m.Plane.Cause() != nil {
		return nil
	}

	var unread []driver.MessageEnds
	if m.Mu.TryLock() { // otherwise, a call holds the lock during a wait, and unread stays empty
		for peer := range m.outbox.peers {
			unread = append(unread, m.outbox.unreadMessages(peer)...)
		}

		m.Mu.Unlock()
	}

	// All headers that peers wrote before the group began to close are visible now.
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if m.inbox.mailbox == nil {
		return nil // the teardown has freed it
	}

	const all = true // even incomplete messages
	readErr := m.inbox.readHeaders()
	passErr := m.inbox.passToMatcher(all)
	if readErr != nil || passErr != nil {
		return errors.Join(readErr, passErr)
	}

	// From now on, senders list the messages that this rank has not read.
	atomic.StoreUint32(&m.inbox.mailbox.wakeup().closed, 1)
	var awaited []control.AwaitedRecv
	for _, e := range m.inbox.recvsWithoutMessage {
		// Until the Recv has claimed a message, Number is 0 and Source can be AnySource.
		a := control.AwaitedRecv{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.number}
		if e.isClaimed {
			a.Source = e.source
		}

		awaited = append(awaited, a)
	}

	return control.UnmatchedError(m.Config, m.inbox.matcher.Unclaimed(), awaited, unread)
}

// MessagesBefore lists the messages that this rank sent and received before a collective.
func (m *Messages) MessagesBefore(collective uint64) []driver.MessageEnds {
	if m.messagePlane == nil {
		return nil
	}

	return m.messagePlane.MessagesBefore(collective)
}
