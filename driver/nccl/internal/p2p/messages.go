package p2p

import (
	"context"
	"errors"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
	"symmem/internal/control"
)

// Messages are those of a group.
type Messages struct {
	Group
	outbox
	inbox

	closed bool // guarded by Mu
	// sends are those that their streams have not come past; looked is how many were left when they
	// were last looked through. Both are guarded by inbox.mu: who ends waits looks at both ends.
	sends  []*End
	looked int
	late   bool // ReleaseLate was called; of the goroutine that tears the group down
}

// Open makes messages possible where the ranks are on one machine.
func (m *Messages) Open(g Group) error {
	known, ok := g.Plane.(control.Messages)
	if !ok || len(g.Config.Ranks) == 1 {
		return nil
	}
	m.Group = g
	m.outbox.Group, m.inbox.Group = &m.Group, &m.Group
	m.announced, m.expected = map[address]*announcement{}, map[address]*End{}
	m.repeated, m.peerSegments = map[slotKey]*announcement{}, map[slotKey]*peerSegment{}
	m.peers = make([]peerOutbox, len(m.Config.Ranks))
	var err error
	if m.own, m.file, err = m.openMailbox(); err != nil {
		return err
	}
	m.counts = known
	return m.staging.add(&m.Group, m.FirstStaging())
}

// Known reports whether the ranks can send messages to each other.
func (m *Messages) Known() bool { return m.counts != nil }

// newEnd counts a message at its call. m.Mu is held.
func (m *Messages) newEnd(p *Plan) *End {
	return &End{of: m, plan: p, Message: m.counts.Count(p.Call), check: m.Check.Load()}
}

// mayMessage refuses a message for a stream when the group has failed. The stream counts as busy
// before that, so the end of a group that fails from now on waits for the message and ends it. s.Mu
// and m.Mu are held.
func (m *Messages) mayMessage(s *stream.Stream, p *Plan) error {
	m.Busy.Note(s)
	err := m.Plane.Cause()
	if m.Plane.PeerFailed() {
		err = m.Owner.AfterPeerFault(p.Call)
	}
	if err != nil {
		s.MarkReported(m.Owner) // by this error
	}
	return err
}

// Transfer queues one end of a message. s.Mu and m.Mu are held.
func (m *Messages) Transfer(s *stream.Stream, p *Plan) error {
	if err := m.mayMessage(s, p); err != nil {
		return err
	}
	if p.Operation == driver.Send {
		return m.send(s, p)
	}
	return m.receive(s, p)
}

// failUnqueued fails the group over a message that could not be queued. s.Mu is held.
func (m *Messages) failUnqueued(s *stream.Stream, p *Plan, err error) error {
	err = m.Owner.FailUnqueued(p.Call, err)
	s.MarkReported(m.Owner)
	return err
}

// Map maps the mailboxes of the other ranks, and the segment with which their staging begins.
// So messages that fit there need no call to CUDA once they are announced.
func (m *Messages) Map(ctx context.Context) error {
	if m.counts == nil {
		return nil
	}
	for peer, rank := range m.Config.Ranks {
		if peer == m.Config.Rank {
			continue
		}
		var err error
		if m.peers[peer].mailbox, err = m.fetchMailbox(ctx, rank); err != nil {
			return err
		}
		theirs := &peerSegment{bytes: m.FirstStaging()}
		theirs.at, err = m.Device.Exporter.Fetch(ctx, rank, stagingKey(m.Config.ID, 1), theirs.bytes)
		if err != nil {
			return err
		}
		m.peerSegments[slotKey{peer, 1}] = theirs
	}
	return nil
}

// Withdraw ends the offer of this rank's mailbox, which the peers have mapped.
func (m *Messages) Withdraw() error {
	if m.file == nil {
		return nil
	}
	err := m.Device.Exporter.Withdraw(mailboxKey(m.Config.ID), m.file)
	m.file = nil
	return err
}

// stop ends what delivers messages. The group has ended.
func (m *Messages) stop() {
	if m.counts == nil {
		return
	}
	m.mu.Lock()
	m.stopped = true
	if m.own != nil {
		m.own.wakeup().wake()
	}
	m.mu.Unlock()
	m.delivering.Wait()
}

// Close gives everything back, once no kernel may use it, unless a stream has yet to come past a
// message: then it stays for as long as the process.
func (m *Messages) Close() error {
	if m.counts == nil && m.own == nil {
		return nil
	}
	m.stop()
	return m.Device.GPU.GiveBack(m.release)
}

func (m *Messages) release() error {
	m.Mu.Lock() // a call may be queueing a message
	defer m.Mu.Unlock()
	if m.counts == nil || m.closed || m.InFlight() {
		return nil
	}
	m.closed = true
	errs := []error{m.Withdraw()}
	// Messages that were not taken by now stay untaken if the group has failed.
	cause := m.Plane.Cause()
	needed := m.reclaimAll() && (cause == nil || errors.Is(cause, driver.ErrClosed))
	d := m.Device
	errs = append(errs, d.GPU.Do(func() error {
		var errs []error
		for _, theirs := range m.peerSegments {
			if theirs.at != 0 {
				errs = append(errs, d.GPU.Unmap(theirs.at, theirs.bytes))
			}
		}
		return errors.Join(errs...)
	}))
	errs = append(errs, m.staging.close(&m.Group, needed))
	for i := range m.peers {
		if box := m.peers[i].mailbox; box != nil {
			errs = append(errs, box.close(d))
			m.peers[i].mailbox = nil
		}
	}
	m.mu.Lock()
	own := m.own
	m.own, m.peerSegments = nil, nil
	m.mu.Unlock()
	if own != nil {
		errs = append(errs, own.close(d))
	}
	return errors.Join(errs...)
}

// InFlight reports whether a message is still under way.
func (m *Messages) InFlight() bool {
	m.pruneSends()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pruneReceives()
	return len(m.sends)+len(m.receives) > 0
}
