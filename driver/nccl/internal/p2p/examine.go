package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Examine returns an error if the wait of a stream can never end, for example because the peer has
// exited. A Recv waits for its message. A captured Send (in a CUDA graph) waits until the receiver
// has copied the message of the graph's previous launch.
func (m *Messages) Examine() error {
	if m.messagePlane == nil { // the ranks cannot exchange messages
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
		if err := m.examineWait(e); err != nil {
			return err
		}
	}

	return nil
}

// listWaiting returns the Sends and Recvs in which streams still wait, after reading the headers of
// new messages.
func (m *Messages) listWaiting() ([]*End, error) {
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.inbox.pruneReceives()
	err := m.inbox.readHeaders()
	// Even after an error, isWaiting must note the start of each wait.
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

// examineWait returns an error if the wait in e can never end.
func (m *Messages) examineWait(e *End) error {
	err := m.diagnose(e)
	if err == nil {
		return nil
	}

	// The message may have arrived during diagnose. All headers that the peer posted before the error
	// are visible now.
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	if err := m.inbox.readHeaders(); err != nil {
		return err
	}

	if !m.inbox.isWaiting(e) {
		return nil
	}

	foundNoMessage := errors.As(err, new(*driver.MessageError))
	if foundNoMessage && mayHaveMessage(m.inbox, e) {
		return nil
	}

	return err
}

// diagnose returns a possible reason why the wait in e can never end, or nil. The caller must not
// hold inbox.mu.
func (m *Messages) diagnose(e *End) error {
	p := e.plan
	m.inbox.mu.Lock()
	isRecvWithoutMessage := !e.isCapturedSend() && !mayHaveMessage(m.inbox, e)
	m.inbox.mu.Unlock()
	// In a strict group, a Send and its Recv follow the same number of collectives. A peer that has
	// called more of them can no longer send the message.
	mustBeSentNow := m.Config.Strict && isRecvWithoutMessage
	if mustBeSentNow && m.messagePlane.HasCalledMore(p.Root, e.After) {
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

// UnmatchedError returns an error that lists each Send without a Recv and each Recv without a Send.
// It is called when a group closes, and also marks this rank's mailbox as closed.
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

	// Headers that peers wrote before the group began to close are visible now.
	const all = true // includes messages whose data has not arrived
	readErr := m.inbox.readHeaders()
	passErr := m.inbox.passToMatcher(all)
	if readErr != nil || passErr != nil {
		return errors.Join(readErr, passErr)
	}

	// Senders report messages that they post later.
	atomic.StoreUint32(&m.inbox.mailbox.wakeup().closed, flagSet)
	unreceived := m.inbox.matcher.Unclaimed()
	return control.UnmatchedError(m.Config, unreceived, awaitedRecvs(m.inbox), unread)
}

// unreadByPeers lists this rank's messages in mailboxes that peers have closed. It returns nil
// instead of waiting for m.Mu, because another call may hold m.Mu for a long time.
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
		a := control.AwaitedRecv{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.number}
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
