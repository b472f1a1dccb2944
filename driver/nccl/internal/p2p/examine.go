package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/internal/control"
)

// Examine asks why messages may never end.
func (m *Messages) Examine() error {
	if m.counts == nil {
		return nil
	}
	replayed := func(e *End) bool { return e.takenWord != nil }
	m.mu.Lock()
	again := slices.ContainsFunc(m.sends, replayed)
	m.mu.Unlock()
	if again {
		m.pruneSends() // so that of several launches that one is found to wait whose turn it is
	}
	m.mu.Lock()
	m.pruneReceives()
	err := m.readHeaders()
	var waiting []*End
	for _, e := range m.open {
		if m.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}
	for _, e := range m.sends {
		if replayed(e) && m.isWaiting(e) {
			waiting = append(waiting, e)
		}
	}
	m.mu.Unlock()
	for _, e := range waiting {
		if err == nil {
			err = m.examineMessage(e)
		}
	}
	return err
}

// examineMessage asks why a message may never come, or, for a Send of a graph, why the one before
// may never be taken.
func (m *Messages) examineMessage(e *End) error {
	p := e.plan
	var err error
	m.mu.Lock()
	missing := e.takenWord == nil && m.Config.Strict && e.announced == nil && !m.mayArrive(e)
	m.mu.Unlock()
	if missing && m.counts.CalledMore(p.Root, e.After) {
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
	// Everything that the rank announced and did before is visible by now.
	m.mu.Lock()
	defer m.mu.Unlock()
	failed := m.readHeaders()
	var unmatched *driver.MessageError
	if failed != nil || !m.isWaiting(e) ||
		errors.As(err, &unmatched) && (e.announced != nil || m.mayArrive(e)) {
		return failed
	}
	return err
}

// Unmatched says which messages end with the group.
func (m *Messages) Unmatched() error {
	if m.counts == nil || m.Plane.Cause() != nil {
		return nil
	}
	var untaken []driver.MessageEnds
	if m.Mu.TryLock() { // else a call waits for others, which the end of the group ends
		for peer := range m.peers {
			untaken = append(untaken, m.unread(peer)...)
		}
		m.Mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own == nil {
		return nil // the group has failed meanwhile, and been torn down
	}
	if err := errors.Join(m.readHeaders(), m.arrive(true)); err != nil {
		return err
	}
	atomic.StoreUint32(&m.own.wakeup().closed, 1)
	var awaited []control.Awaited
	for _, e := range m.open {
		a := control.Awaited{Source: e.plan.Root, Tag: e.plan.Tag, Number: e.number}
		if e.claimed {
			a.Source = e.source
		}
		awaited = append(awaited, a)
	}
	return control.Unmatched(m.Config, m.matcher.Unclaimed(), awaited, untaken)
}

// Before lists what this rank has sent and received before a collective.
func (m *Messages) Before(collective uint64) []driver.MessageEnds {
	if m.counts == nil {
		return nil
	}
	return m.counts.MessagesBefore(collective)
}
