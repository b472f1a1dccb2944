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

// Messages implements Send and Recv for a group.
type Messages struct {
	Group
	messagePlane control.Messages // nil if the ranks cannot exchange messages
	outbox       *outbox
	inbox        *inbox // may be nil if messagePlane is

	closed          bool   // guarded by Mu
	suspended       bool   // the peers' staging memory is unmapped; guarded by Mu
	unfinishedSends []*End // guarded by inbox.mu
	sendsAfterPrune int    // guarded by inbox.mu

	isReleasing bool
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

	m.inbox, m.outbox, m.messagePlane = in, newOutbox(&m.Group, messagePlane), messagePlane
	return m.outbox.staging.addSegment(m.Config, m.outbox.firstSegmentBytes())
}

// Available reports whether the ranks can send messages to each other.
func (m *Messages) Available() bool { return m.messagePlane != nil }

// HasUnanswered reports whether any Recv is waiting for a message that has not been announced.
func (m *Messages) HasUnanswered() bool { return m.messagePlane != nil && m.inbox.hasUnanswered() }

// newEnd requires m.Mu.
func (m *Messages) newEnd(p *Plan) *End {
	message := m.messagePlane.Count(p.Call)
	return &End{messages: m, plan: p, Message: message, isCompared: m.Check.Load()}
}

// beginCall marks the stream as busy before it checks for a failure. If the group fails later, the
// teardown therefore ends the stream's wait. It requires s.Mu and m.Mu.
func (m *Messages) beginCall(s *stream.Stream, p *Plan) error {
	m.Busy.Add(s)
	err := m.Plane.Cause()
	if m.Plane.PeerFailed() {
		err = m.Owner.FailAfterPeer(p.Call)
	}

	if err != nil {
		s.MarkReported(m.Owner)
	}

	return err
}

// Transfer queues a Send or a Recv. The caller must hold s.Mu and m.Mu.
func (m *Messages) Transfer(s *stream.Stream, p *Plan) error {
	if err := m.beginCall(s, p); err != nil {
		return err
	}

	if p.Operation == driver.Send {
		return m.send(s, p)
	}

	return m.receive(s, p)
}

// failUnqueued requires s.Mu.
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

	for peer := range m.Config.Ranks {
		if peer == m.Config.Rank {
			continue
		}

		err := control.Fetch(ctx, m.Plane, m.Config, peer, "connecting group "+m.Config.Name(),
			func() error { return m.mapPeer(ctx, peer) })
		if err != nil {
			return err
		}
	}

	return nil
}

func (m *Messages) mapPeer(ctx context.Context, peer int) (err error) {
	rank := m.Config.Ranks[peer]
	m.outbox.peers[peer].mailbox, err = fetchMailbox(ctx, m.Device, m.Config, rank)
	if err != nil {
		return err
	}

	segment := &peerSegment{bytes: m.outbox.firstSegmentBytes()}
	segment.address, err = m.Device.Exporter.Fetch(ctx, rank, stagingKey(m.Config.ID, 1),
		segment.bytes, 0)
	if err == nil {
		m.inbox.peerSegments[segmentKey{peer, 1}] = segment
	}

	return err
}

// Withdraw ends the export of this rank's mailbox, which all peers must have mapped.
func (m *Messages) Withdraw() error {
	if m.inbox == nil || m.inbox.file == nil {
		return nil
	}

	err := m.Device.Exporter.Withdraw(mailboxKey(m.Config.ID), m.inbox.file)
	m.inbox.file = nil
	return err
}

// Close stops the delivery of messages. It frees the memory once no running kernel can use it, or
// never if a stream then has an unfinished message.
func (m *Messages) Close() error {
	if m.messagePlane == nil {
		return nil
	}

	m.inbox.stop()
	return m.Device.GPU.FreeWhenIdle(m.free)
}

// free can run at the same time as calls that queue messages.
func (m *Messages) free() error {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.closed || m.InFlight() {
		return nil
	}

	m.closed = true
	errs := []error{m.Withdraw()}
	// After a failure, no peer copies more messages.
	cause := m.Plane.Cause()
	peersNeedMemory := m.outbox.reclaimAll() && (cause == nil || errors.Is(cause, driver.ErrClosed))
	d := m.Device
	errs = append(errs, d.GPU.Do(func() error {
		var errs []error
		for _, segment := range m.inbox.peerSegments {
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
	errs = append(errs, m.outbox.staging.close(m.Config, peersNeedMemory))
	for i := range m.outbox.peers {
		if box := m.outbox.peers[i].mailbox; box != nil {
			errs = append(errs, box.close(d))
			m.outbox.peers[i].mailbox = nil
		}
	}

	m.inbox.mu.Lock()
	ownMailbox := m.inbox.mailbox
	m.inbox.mailbox, m.inbox.peerSegments = nil, nil
	m.inbox.mu.Unlock()
	if ownMailbox != nil {
		errs = append(errs, ownMailbox.close(d))
	}

	return errors.Join(errs...)
}

// InFlight reports whether a stream has an unfinished message.
func (m *Messages) InFlight() bool {
	m.pruneSends()
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.inbox.pruneReceives()
	return len(m.unfinishedSends)+len(m.inbox.unfinishedRecvs) > 0
}

// Release ends the waits of streams for a message, or for a peer to copy a captured message. Each
// launch of a graph waits again, so call Release at least once for each queued launch.
func (m *Messages) Release() {
	if m.messagePlane == nil {
		return
	}

	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	for _, e := range m.inbox.unfinishedRecvs {
		e.refuse()
	}

	isHandled := func(e *End) bool { return e.isHandled }
	m.inbox.recvsWithoutMessage = slices.DeleteFunc(m.inbox.recvsWithoutMessage, isHandled)
	checkedFlags := map[*uint32]bool{} // shared by all launches of a graph
	for _, e := range m.unfinishedSends {
		if e.copiedFlag != nil && !checkedFlags[e.copiedFlag] &&
			e.state.Value() == kernels.MessageWaits {
			e.release()
		}

		checkedFlags[e.copiedFlag] = true
	}
}

// ReleaseAfterTimeout repeats Release in the background until no stream has an unfinished message.
// The device stays open until then.
func (m *Messages) ReleaseAfterTimeout() {
	if m.messagePlane == nil || m.isReleasing {
		return
	}

	m.isReleasing = true
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

// ReleaseGraph frees the resources of a graph whose launches have all completed.
func (m *Messages) ReleaseGraph(graphMessages []*CapturedMessage) {
	states := map[*gpu.Word]bool{}
	for _, c := range graphMessages {
		if c.messages == m && c.state != nil {
			states[c.state] = true
		}
	}

	if len(states) == 0 {
		return
	}

	// If another call holds the lock and never returns, the graph's words are leaked.
	ctx, cancel := context.WithTimeout(context.Background(), m.Device.GPU.Timeout)
	defer cancel()
	if gpu.Poll(ctx, m.Mu.TryLock) != nil {
		return
	}

	defer m.Mu.Unlock()
	m.inbox.mu.Lock()
	isInGraph := func(e *End) bool { return e.isCaptured && states[e.state] }
	m.unfinishedSends = slices.DeleteFunc(m.unfinishedSends, isInGraph)
	m.inbox.unfinishedRecvs = slices.DeleteFunc(m.inbox.unfinishedRecvs, isInGraph)
	m.inbox.recvsWithoutMessage = slices.DeleteFunc(m.inbox.recvsWithoutMessage, isInGraph)
	m.inbox.mu.Unlock()
	for _, c := range graphMessages {
		if c.messages == m {
			c.release()
		}
	}
}
