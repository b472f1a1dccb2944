package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Examine returns an error if a stream is waiting for a message that can never complete.
func (m *Messages) Examine() error {
	if m.counts == nil {
		return nil
	}
	isCaptured := func(e *End) bool { return e.takenWord != nil }
	m.in.mu.Lock()
	prune := slices.ContainsFunc(m.sends, isCaptured)
	m.in.mu.Unlock()
	if prune {
		m.pruneSends() // several launches of a graph may be queued, but only the first one waits
	}
	m.in.mu.Lock()
	m.in.pruneReceives()
	err := m.in.readHeaders()
	var waiting []*End
	for _, e := range m.in.pending {
		if m.in.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}
	for _, e := range m.sends {
		if isCaptured(e) && m.in.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}
	m.in.mu.Unlock()
	for _, e := range waiting {
		if err == nil {
			err = m.examineMessage(e)
		}
	}
	return err
}

// examineMessage returns an error if the message of a Recv can never arrive. For a captured Send,
// it returns an error if the previous message in the slot can never be copied.
func (m *Messages) examineMessage(e *End) error {
	p := e.plan
	var err error
	m.in.mu.Lock()
	missing := e.takenWord == nil && m.Config.Strict && e.announced == nil && !m.in.mayArrive(e)
	m.in.mu.Unlock()
	if missing && m.counts.HasCalledMore(p.Root, e.After) {
		err = &driver.MessageError{
			Fault: driver.MessagesUnmatched, Group: m.Config.Name(), Number: e.After + 1,
			Ends: m.Before(e.After + 1),
		}
	} else {
		err = m.counts.DiagnoseMessage(p.Root, e.since, func() string {
			return control.DescribeMessage(m.Config, p.Call, e.Number)
		})
	}
	if err == nil {
		return nil
	}
	// The error may be out of date. By now, all messages that the peer had announced before it was
	// examined are visible, so read the headers and check again.
	m.in.mu.Lock()
	defer m.in.mu.Unlock()
	readErr := m.in.readHeaders()
	var unmatched *driver.MessageError
	if readErr != nil || !m.in.isWaiting(e) ||
		errors.As(err, &unmatched) && (e.announced != nil || m.in.mayArrive(e)) {
		return readErr
	}
	return err
}

// Unmatched is called when the group closes. It returns an error that lists each Send without a
// Recv, and each Recv without a Send.
func (m *Messages) Unmatched() error {
	if m.counts == nil || m.Plane.Cause() != nil {
		return nil
	}
	var unread []driver.MessageEnds
	if m.Mu.TryLock() { // if this fails, a call holds the lock and is waiting for other ranks
		for peer := range m.out.peers {
			unread = append(unread, m.out.unread(peer)...)
		}
		m.Mu.Unlock()
	}
	m.in.mu.Lock()
	defer m.in.mu.Unlock()
	if m.in.own == nil {
		return nil // the group has failed and has been torn down
	}
	if err := errors.Join(m.in.readHeaders(), m.in.passToMatcher(true)); err != nil {
		return err
	}
	atomic.StoreUint32(&m.in.own.wakeup().closed, 1)
	var awaited []control.AwaitedRecv
	for _, e := range m.in.pending {
		a := control.AwaitedRecv{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.number}
		if e.claimed {
			a.Source = e.source
		}
		awaited = append(awaited, a)
	}
	return control.UnmatchedError(m.Config, m.in.matcher.Unclaimed(), awaited, unread)
}

// Before lists the messages that this rank sent and received before a collective.
func (m *Messages) Before(collective uint64) []driver.MessageEnds {
	if m.counts == nil {
		return nil
	}
	return m.counts.MessagesBefore(collective)
}
