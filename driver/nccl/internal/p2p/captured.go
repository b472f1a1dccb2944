package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// CapturedMessage is a Send or a Recv in a CUDA graph. Each launch of the graph sends or receives
// another message, but all launches use the same words and memory.
type CapturedMessage struct {
	messages   *Messages
	plan       *Plan
	staged     stagedMessage    // memory and flags of a Send's messages
	descriptor *kernels.Message // for a Recv, describes the copy; nil for a Send and before record
	state      *gpu.Word        // see End.state; nil before record
	lastLaunch *End             // the Send or Recv of the latest launch, or nil
}

// record adds the Send or Recv to the capture of s. The CUDA context must be current. Even after an
// error, a part of the work may be captured.
func (c *CapturedMessage) record(s *stream.Stream) error {
	if c.plan.Operation == driver.Recv {
		return c.recordReceive(s)
	}

	return c.recordSend(s)
}

func (c *CapturedMessage) recordReceive(s *stream.Stream) error {
	d := c.messages.Device
	descriptor, err := d.Descriptors.Take(d.GPU.CUDA)
	if err != nil {
		return err
	}

	c.descriptor = descriptor
	c.state = (*gpu.Word)(&descriptor.State)
	return c.messages.queueCopy(descriptor, c.plan, s.CUDA)
}

// recordSend makes each launch wait until the receiver has copied the previous launch's message. It
// sets c.state during the wait.
func (c *CapturedMessage) recordSend(s *stream.Stream) error {
	m := c.messages
	api := m.Device.GPU.CUDA
	state, err := m.Device.GPU.Words.Take(api)
	if err != nil {
		return err
	}

	c.state = state
	box := m.outbox.peers[c.plan.Root].mailbox
	copied := box.deviceAddress(&box.flags(m.Config.Rank).copied[c.staged.slot])
	if err := api.StreamWriteValue(s.CUDA, state.Address(), kernels.MessageWaits); err != nil {
		return err
	}

	if err := api.StreamWaitValue(s.CUDA, copied, 1, cuda.WaitEqual); err != nil {
		return err
	}

	if err := api.StreamWriteValue(s.CUDA, copied, 0); err != nil {
		return err
	}

	if err := api.StreamWriteValue(s.CUDA, state.Address(), 0); err != nil {
		return err
	}

	return m.outbox.queueSend(c.plan, c.staged, s.CUDA)
}

// Launch prepares one launch of the graph, which the caller then queues. It numbers the message,
// announces it if it is sent, and otherwise passes a Recv to the inbox. The caller must hold s.Mu
// and Group.Mu.
func (c *CapturedMessage) Launch(s *stream.Stream) (*End, error) {
	m, p := c.messages, c.plan
	if err := m.beginCall(s, p); err != nil {
		return nil, err
	}

	if p.Operation == driver.Send {
		const needsSlot = false // the message already has one
		if err := m.outbox.awaitRoom(p, needsSlot); err != nil {
			return nil, err
		}
	}

	e := m.newEnd(p)
	e.state = c.state
	e.descriptor = c.descriptor
	e.isCaptured = true
	e.previousLaunch = c.lastLaunch
	c.lastLaunch = e
	m.Owner.NoteMessage(s, p.Call)
	if p.Operation == driver.Send {
		words := m.outbox.flagsTo(p.Root)
		e.arrivedWord = &words.arrived[c.staged.slot]
		e.copiedWord = &words.copied[c.staged.slot]
		e.canOverwriteWord = &m.outbox.peers[p.Root].mailbox.headersFrom(m.Config.Rank).canOverwrite
		const isInGraph = true
		m.outbox.announce(e, c.staged, isInGraph)
		return e, nil
	}

	if _, err := m.inbox.post(e); err != nil { // post never accepts the message of a captured Recv
		return nil, m.Plane.Fail(err)
	}

	return e, nil
}

// release frees the resources of a closed graph's message. The caller must hold Group.Mu.
func (c *CapturedMessage) release() {
	m := c.messages
	switch {
	case c.descriptor != nil:
		m.Device.Descriptors.Put(c.descriptor)
	case c.state != nil:
		m.Device.GPU.Words.Put(c.state)
	}

	if c.plan.Operation == driver.Send && !m.closed {
		out := &m.outbox.peers[c.plan.Root]
		// The receiver may still have to copy the last message.
		out.uncopied = append(out.uncopied, c.staged)
		m.outbox.reclaim(out)
	}
}
