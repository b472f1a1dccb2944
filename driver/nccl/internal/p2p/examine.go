package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Examine returns an error if a stream waits in a Recv or a captured Send, and the wait can never
// end.
func (m *Messages) Examine() error {
	if !m.Available() {
		return nil
	}

	m.inbox.mu.Lock()
	hasCapturedSend := slices.ContainsFunc(m.unfinishedSends, (*End).isCapturedSend)
	m.inbox.mu.Unlock()
	if hasCapturedSend {
		m.pruneSends()
	}

	waiting, err := m.listWaiting()
	if err != nil {
		return err
	}

	for _, e := range waiting {
		if err := m.confirmedFault(e); err != nil {
			return err
		}
	}

	return nil
}

// listWaiting reads the new headers, and lists the Recvs and captured Sends in which streams wait.
func (m *Messages) listWaiting() ([]*End, error) {
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.inbox.pruneReceives()
	err := m.inbox.readHeaders()
	var waiting []*End
	for _, e := range m.inbox.recvsWithoutMessage {
		if m.inbox.checkWait(e) {
			waiting = append(waiting, e)
		}
	}

	for _, e := range m.unfinishedSends {
		if e.isCapturedSend() && m.inbox.checkWait(e) {
			waiting = append(waiting, e)
		}
	}

	return waiting, err
}

// confirmedFault returns an error if the wait in e can never end.
func (m *Messages) confirmedFault(e *End) error {
	err := m.findFault(e)
	if err == nil {
		return nil
	}

	// The peer may have posted a header during findFault, and failed afterwards.
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if err := m.inbox.readHeaders(); err != nil {
		return err
	}

	if !m.inbox.checkWait(e) {
		return nil
	}

	isUnmatched := errors.As(err, new(*driver.MessageError))
	if isUnmatched && mayHaveMessage(m.inbox, e) {
		return nil
	}

	return err
}

// findFault is confirmedFault, but misses messages that are posted during the call. The caller must
// not hold inbox.mu.
func (m *Messages) findFault(e *End) error {
	p := e.plan
	m.inbox.mu.Lock()
	lacksMessage := p.Operation == driver.Recv && !mayHaveMessage(m.inbox, e)
	m.inbox.mu.Unlock()
	// In a strict group, a Send and its Recv come after the same number of collectives (e.After). A
	// peer that has called more collectives can no longer send the message.
	mustBeSent := m.Config.Strict && lacksMessage
	if mustBeSent && m.messagePlane.HasCalledMore(p.Root, e.After) {
		nextCollective := e.After + 1
		return &driver.MessageError{
			Fault: driver.MessagesUnmatched, Group: m.Config.Name(), Number: nextCollective,
			Ends: m.MessagesBefore(nextCollective),
		}
	}

	return m.messagePlane.DiagnoseMessage(p.Root, e.waitStart, func() string {
		return control.DescribeMessage(m.Config, p.Call, e.Number)
	})
}

// mayHaveMessage reports whether the Recv e has been assigned a message, or a known message may
// still be assigned to it. The caller must hold in.mu.
func mayHaveMessage(in *inbox, e *End) bool {
	return e.announcement != nil || in.hasCandidate(e)
}

// UnmatchedError is called when the group closes. It returns an error that lists the Sends without
// a Recv and the Recvs without a Send. It also closes this rank's mailbox. Senders then list
// their later messages as unread (unreadByPeers).
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

	const all = true // includes messages whose data has not arrived
	readErr := m.inbox.readHeaders()
	passErr := m.inbox.passToMatcher(all)
	if readErr != nil || passErr != nil {
		return errors.Join(readErr, passErr)
	}

	atomic.StoreUint32(&m.inbox.mailbox.wakeup().closed, flagSet)
	unreceived := m.inbox.matcher.Unclaimed()
	return control.UnmatchedError(m.Config, unreceived, awaitedRecvs(m.inbox), unread)
}

// unreadByPeers lists this rank's messages in mailboxes that peers have closed. It returns nil if
// another call holds m.Mu, perhaps for a long time.
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

// awaitedRecvs describes the Recvs that have not accepted a message. The caller must hold in.mu.
func awaitedRecvs(in *inbox) []control.AwaitedRecv {
	var awaited []control.AwaitedRecv
	for _, e := range in.recvsWithoutMessage {
		a := control.AwaitedRecv{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.sentNumber}
		if e.isAssigned {
			a.Source = e.source // actual rank instead of AnySource
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
