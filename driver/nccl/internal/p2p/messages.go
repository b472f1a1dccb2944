package p2p

import (
	"context"
	"errors"
	"slices"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/control"
)

// Messages implements the messages of a group.
type Messages struct {
	Group
	messagePlane control.Messages // nil if the ranks cannot exchange messages
	out          *outbox
	in           *inbox // nil if messagePlane is nil, unless Open has failed

	closed    bool   // guarded by Mu
	suspended bool   // whether a Suspender has unmapped the peers' staging memory; guarded by Mu
	sends     []*End // sends that streams have not passed; guarded by inbox.mu
	pruned    int    // length of sends after the last pruneSends; guarded by inbox.mu

	releasingLate bool // used only by the teardown goroutine
}

// Open enables messages if the ranks are on one machine.
func (m *Messages) Open(g Group) error {
	messagePlane, ok := g.Plane.(control.Messages)
	if !ok || len(g.Config.Ranks) == 1 {
		return nil
	}
	m.Group = g
	in, err := newInbox(&m.Group, messagePlane)
	if err != nil {
		return err
	}
	m.in, m.out, m.messagePlane = in, newOutbox(&m.Group, messagePlane), messagePlane
	return m.out.staging.add(m.Config, m.out.firstStaging())
}

// Available reports whether the ranks can send messages to each other.
func (m *Messages) Available() bool { return m.messagePlane != nil }

// Unanswered reports whether any Recv is waiting for a message that has not been announced.
func (m *Messages) Unanswered() bool { return m.messagePlane != nil && m.in.unanswered() }

// newEnd counts a message. The caller must hold m.Mu.
func (m *Messages) newEnd(p *Plan) *End {
	return &End{messages: m, plan: p, Message: m.messagePlane.Count(p.Call), compare: m.Check.Load()}
}

// admit returns an error if the group has failed. It first marks the stream as busy, so that the
// group's teardown ends the message if the group fails after the check. The caller must hold s.Mu
// and m.Mu.
func (m *Messages) admit(s *stream.Stream, p *Plan) error {
	m.Busy.Add(s)
	err := m.Plane.Cause()
	if m.Plane.PeerFailed() {
		err = m.Owner.AfterPeerFault(p.Call)
	}
	if err != nil {
		s.MarkReported(m.Owner) // the call returns the error
	}
	return err
}

// Transfer queues one end of a message. The caller must hold s.Mu and m.Mu.
func (m *Messages) Transfer(s *stream.Stream, p *Plan) error {
	if err := m.admit(s, p); err != nil {
		return err
	}
	if p.Operation == driver.Send {
		return m.send(s, p)
	}
	return m.receive(s, p)
}

// failUnqueued fails the group. The caller must hold s.Mu.
func (m *Messages) failUnqueued(s *stream.Stream, p *Plan, err error) error {
	err = m.Owner.FailUnqueued(p.Call, err)
	s.MarkReported(m.Owner)
	return err
}

// Map maps each peer's mailbox and the first segment of its staging memory.
func (m *Messages) Map(ctx context.Context) error {
	if m.messagePlane == nil {
		return nil
	}
	for peer, rank := range m.Config.Ranks {
		if peer == m.Config.Rank {
			continue
		}
		box, err := fetchMailbox(ctx, m.Device, m.Config, rank)
		if err != nil {
			return err
		}
		m.out.peers[peer].mailbox = box
		segment := &peerSegment{bytes: m.out.firstStaging()}
		segment.address, err = m.Device.Exporter.Fetch(ctx, rank, stagingKey(m.Config.ID, 1),
			segment.bytes, 0)
		if err != nil {
			return err
		}
		m.in.peerSegments[slotKey{peer, 1}] = segment
	}
	return nil
}

// Withdraw ends the export of this rank's mailbox, once all peers have mapped it.
func (m *Messages) Withdraw() error {
	if m.in == nil || m.in.file == nil {
		return nil
	}
	err := m.Device.Exporter.Withdraw(mailboxKey(m.Config.ID), m.in.file)
	m.in.file = nil
	return err
}

// Close stops the delivery of messages. It frees the memory once the last kernel that may use the
// memory has exited. If a stream has an unfinished message, the memory stays allocated.
func (m *Messages) Close() error {
	if m.messagePlane == nil {
		return nil
	}
	m.in.stop()
	return m.Device.GPU.FreeWhenIdle(m.free)
}

// free implements Close. It may run concurrently with calls that queue messages.
func (m *Messages) free() error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.closed || m.InFlight() {
		return nil
	}
	m.closed = true
	errs := []error{m.Withdraw()}
	// If the group has failed, peers copy no more messages.
	cause := m.Plane.Cause()
	needed := m.out.reclaimAll() && (cause == nil || errors.Is(cause, driver.ErrClosed))
	d := m.Device
	errs = append(errs, d.GPU.Do(func() error {
		var errs []error
		for _, segment := range m.in.peerSegments {
			if segment.address == 0 {
				continue
			}
			if !m.suspended {
				errs = append(errs, d.GPU.CUDA.Unmap(segment.address, segment.bytes))
			}
			errs = append(errs, d.GPU.CUDA.AddressFree(segment.address, segment.bytes))
		}
		return errors.Join(errs...)
	}))
	errs = append(errs, m.out.staging.close(m.Config, needed))
	for i := range m.out.peers {
		if box := m.out.peers[i].mailbox; box != nil {
			errs = append(errs, box.close(d))
			m.out.peers[i].mailbox = nil
		}
	}
	m.in.mu.Lock()
	own := m.in.mailbox
	m.in.mailbox, m.in.peerSegments = nil, nil
	m.in.mu.Unlock()
	if own != nil {
		errs = append(errs, own.close(d))
	}
	return errors.Join(errs...)
}

// InFlight reports whether a stream has an unfinished message.
func (m *Messages) InFlight() bool {
	m.pruneSends()
	m.in.mu.Lock()
	defer m.in.mu.Unlock()
	m.in.pruneReceives()
	return len(m.sends)+len(m.in.receives) > 0
}

// Release lets streams continue that wait for a message, or for a peer to copy a captured message.
// Each launch of a graph waits again, so Release must be called at least once for each queued
// launch.
func (m *Messages) Release() {
	if m.messagePlane == nil {
		return
	}
	m.in.mu.Lock()
	defer m.in.mu.Unlock()
	for _, e := range m.in.receives {
		e.refuse()
	}
	m.in.pending = slices.DeleteFunc(m.in.pending, func(e *End) bool { return e.handled })
	seen := map[*uint32]bool{} // all launches of a graph share a word, and only one waits
	for _, e := range m.sends {
		if e.takenWord != nil && !seen[e.takenWord] && e.state.Value() == kernels.MessageWaits {
			e.release()
		}
		seen[e.takenWord] = true
	}
}

// ReleaseLate repeats Release in the background until no stream has an unfinished message. The
// device stays open until then.
func (m *Messages) ReleaseLate() {
	if m.messagePlane == nil || m.releasingLate {
		return
	}
	m.releasingLate = true
	m.Device.UnfinishedGroups.Add(1)
	go func() {
		defer m.Device.UnfinishedGroups.Add(-1)
		gpu.PollWithBackoff(func() bool {
			if !m.InFlight() {
				return true
			}
			m.Release()
			return false
		})
	}()
}

// ReleaseGraph frees the resources of a graph's messages. All launches of the graph must have
// completed.
func (m *Messages) ReleaseGraph(calls []*CapturedMessage) {
	states := map[*gpu.Word]bool{}
	for _, k := range calls {
		if k.messages == m && k.state != nil {
			states[k.state] = true
		}
	}
	if len(states) == 0 {
		return
	}
	// If another call holds the lock and never returns, the words are never freed.
	ctx, cancel := context.WithTimeout(context.Background(), m.Device.GPU.Timeout)
	defer cancel()
	if gpu.Poll(ctx, m.Mu.TryLock) != nil {
		return
	}
	defer m.Mu.Unlock()
	m.in.mu.Lock()
	inGraph := func(e *End) bool { return e.captured && states[e.state] }
	m.sends = slices.DeleteFunc(m.sends, inGraph)
	m.in.receives = slices.DeleteFunc(m.in.receives, inGraph)
	m.in.pending = slices.DeleteFunc(m.in.pending, inGraph)
	m.in.mu.Unlock()
	for _, k := range calls {
		if k.messages == m {
			k.release()
		}
	}
}
