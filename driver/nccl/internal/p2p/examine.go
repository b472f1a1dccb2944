package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Examine returns an error if a stream is waiting for a Send or a Recv that can never complete.
func (m *Messages) Examine() error {
	if m.messagePlane == nil {
		return nil
	}
	isCaptured := func(e *End) bool { return e.copiedWord != nil }
	m.inbox.mu.Lock()
	mustPrune := slices.ContainsFunc(m.unfinishedSends, isCaptured)
	m.inbox.mu.Unlock()
	if mustPrune {
		m.pruneSends() // launches may have completed
	}
	m.inbox.mu.Lock()
	m.inbox.pruneReceives()
	err := m.inbox.readHeaders()
	var waiting []*End
	for _, e := range m.inbox.recvsWithoutMessage {
		if m.inbox.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}
	for _, e := range m.unfinishedSends {
		if isCaptured(e) && m.inbox.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}
	m.inbox.mu.Unlock()
	for _, e := range waiting {
		if err == nil {
			err = m.examineMessage(e)
		}
	}
	return err
}

// examineMessage returns an error if the Send or Recv of a waiting stream can never complete. A
// captured Send waits until the message of the previous launch has been copied.
func (m *Messages) examineMessage(e *End) error {
	p := e.plan
	var err error
	m.inbox.mu.Lock()
	isUnmatched := e.copiedWord == nil && m.Config.Strict && e.announcement == nil &&
		!m.inbox.hasCandidate(e)
	m.inbox.mu.Unlock()
	if isUnmatched && m.messagePlane.HasCalledMore(p.Root, e.After) {
		err = &driver.MessageError{
			Fault: driver.MessagesUnmatched, Group: m.Config.Name(), Number: e.After + 1,
			Ends: m.MessagesBefore(e.After + 1),
		}
	} else {
		err = m.messagePlane.DiagnoseMessage(p.Root, e.waitStart, func() string {
			return control.DescribeMessage(m.Config, p.Call, e.Number)
		})
	}
	if err == nil {
		return nil
	}
	// Check again: all headers that the peer had written by the first check are visible now.
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	readErr := m.inbox.readHeaders()
	if readErr != nil || !m.inbox.isWaiting(e) {
		return readErr
	}
	hasMessage := e.announcement != nil || m.inbox.hasCandidate(e)
	if hasMessage && errors.As(err, new(*driver.MessageError)) {
		return nil
	}
	return err
}

// UnmatchedError returns an error that lists each Send without a Recv and each Recv without a
// Send. It is called before a group closes.
func (m *Messages) UnmatchedError() error {
	if m.messagePlane == nil || m.Plane.Cause() != nil {
		return nil
	}
	var unread []driver.MessageEnds
	// A call may hold the lock during a wait. Then do not list unread messages.
	if m.Mu.TryLock() {
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
	if err := errors.Join(m.inbox.readHeaders(), m.inbox.passToMatcher(all)); err != nil {
		return err
	}
	atomic.StoreUint32(&m.inbox.mailbox.wakeup().closed, 1)
	var awaited []control.AwaitedRecv
	for _, e := range m.inbox.recvsWithoutMessage {
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
