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
	counts control.Messages // nil if the ranks cannot send messages to each other
	out    *outbox
	in     *inbox // nil if counts is nil, unless Open has failed

	closed bool // guarded by Mu
	// suspended is set while a Suspender has unmapped the peers' staging memory; guarded by Mu.
	suspended bool
	// sends lists the sends that streams have not passed. pruned is the length of sends after the last
	// call of pruneSends. Both are guarded by inbox.mu, so that Release needs only one lock to release
	// both sends and receives.
	sends  []*End
	pruned int
	late   bool // whether ReleaseLate was called; only the teardown goroutine uses it
}

// Open enables messages if the ranks are on one machine.
func (m *Messages) Open(g Group) error {
	counts, ok := g.Plane.(control.Messages)
	if !ok || len(g.Config.Ranks) == 1 {
		return nil
	}
	m.Group = g
	in, err := newInbox(&m.Group, counts)
	if err != nil {
		return err
	}
	m.in, m.out, m.counts = in, newOutbox(&m.Group, counts), counts
	return m.out.staging.add(m.Config, m.out.firstStaging())
}

// Available reports whether the ranks can send messages to each other.
func (m *Messages) Available() bool { return m.counts != nil }

// Unanswered reports whether any Recv is waiting for a message that has not been announced.
func (m *Messages) Unanswered() bool { return m.counts != nil && m.in.unanswered() }

// newEnd counts a message and returns this rank's end of it. The caller must hold m.Mu.
func (m *Messages) newEnd(p *Plan) *End {
	return &End{messages: m, plan: p, Message: m.counts.Count(p.Call), check: m.Check.Load()}
}

// admit returns an error if the group has failed. Before it checks that, it marks the stream as
// busy, so that the teardown of the group ends the message if the group fails after the check.
// The caller must hold s.Mu and m.Mu.
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

// failUnqueued fails the group because a message could not be queued. The caller must hold s.Mu.
func (m *Messages) failUnqueued(s *stream.Stream, p *Plan, err error) error {
	err = m.Owner.FailUnqueued(p.Call, err)
	s.MarkReported(m.Owner)
	return err
}

// Map maps the mailbox of each peer and the first segment of its staging memory. No CUDA call is
// then needed to receive a message in that segment.
func (m *Messages) Map(ctx context.Context) error {
	if m.counts == nil {
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

// Withdraw ends the export of this rank's mailbox. It is called once the peers have mapped it.
func (m *Messages) Withdraw() error {
	if m.in == nil || m.in.file == nil {
		return nil
	}
	err := m.Device.Exporter.Withdraw(mailboxKey(m.Config.ID), m.in.file)
	m.in.file = nil
	return err
}

// Close stops the delivery of messages, and frees all memory once the last kernel that may use
// the memory has exited. If a stream has an unfinished message, the memory stays allocated until
// the process exits.
func (m *Messages) Close() error {
	if m.counts == nil {
		return nil
	}
	m.in.stop()
	return m.Device.GPU.FreeWhenIdle(m.free)
}

// free implements Close. It may run concurrently with a call that queues a message.
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
	own := m.in.own
	m.in.own, m.in.peerSegments = nil, nil
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

// Release lets streams continue that are waiting for messages that will never arrive. It also
// releases captured Sends that are waiting for a peer to copy the previous message. Each launch of
// a graph waits again, so Release must be called at least once for each queued launch.
func (m *Messages) Release() {
	if m.counts == nil {
		return
	}
	m.in.mu.Lock()
	defer m.in.mu.Unlock()
	for _, e := range m.in.receives {
		e.refuse()
	}
	m.in.pending = slices.DeleteFunc(m.in.pending, func(e *End) bool { return e.handled })
	seen := map[*uint32]bool{} // the launches of a graph share a word, and only one of them waits
	for _, e := range m.sends {
		if e.takenWord != nil && !seen[e.takenWord] && e.state.Value() == kernels.MessageWaits {
			e.release()
		}
		seen[e.takenWord] = true
	}
}

// ReleaseLate repeats Release in the background until no stream has an unfinished message of the
// group. Until then, the messages' memory cannot be freed, so the device stays open.
func (m *Messages) ReleaseLate() {
	if m.counts == nil || m.late {
		return
	}
	m.late = true
	m.Device.Late.Add(1)
	go func() {
		defer m.Device.Late.Add(-1)
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
func (m *Messages) ReleaseGraph(calls []*Captured) {
	states := map[*gpu.Word]bool{}
	for _, k := range calls {
		if k.messages == m && k.state != nil {
			states[k.state] = true
		}
	}
	if len(states) == 0 {
		return
	}
	// If a call that never returns holds the lock, the graph's words are never freed.
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
