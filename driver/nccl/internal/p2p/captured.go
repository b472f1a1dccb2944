package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// A program can capture Sends and Recvs in a CUDA graph, and launch the graph many times. Suppose
// that rank 0 captures a Send to rank 1. All launches use the same memory of rank 0's GPU for their
// messages, and the same two flags in memory that both ranks share:
//
//   - arrived is 1 from the arrival of a message until rank 1 claims it, that is, decides to copy
//     it.
//   - copied is 1 when rank 1 has copied the message. The next launch waits for this, and sets
//     copied to 0 before it overwrites the message.
//
// All launches of a Recv use the same descriptor, which says what the GPU must copy. The host fills
// it in when the message has arrived.

// CapturedMessage is a Send or a Recv in a CUDA graph. Each launch of the graph sends or receives
// another message.
type CapturedMessage struct {
	messages   *Messages
	plan       *Plan
	staged     stagedMessage    // a Send's memory, and the index of its flags, called slot
	descriptor *kernels.Message // nil for a Send, and before record
	// state is kernels.MessageWaits while the stream waits in a launch. It is nil before record. The
	// state of a Recv is a part of its descriptor.
	state      *gpu.Word
	lastLaunch *End // the Send or Recv of the latest launch, or nil
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

// recordSend makes each launch wait until the receiver has copied the previous message. The state
// is kernels.MessageWaits during the wait, and 0 after it.
func (c *CapturedMessage) recordSend(s *stream.Stream) error {
	m := c.messages
	api := m.Device.GPU.CUDA
	state, err := m.Device.GPU.Words.Take(api)
	if err != nil {
		return err
	}

	c.state = state
	box := m.outbox.peers[c.plan.Root].mailbox // the shared memory
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

// Launch prepares one launch of the graph, which the caller then queues. It announces the message
// of a Send to the receiver, or looks for the message of a Recv. The caller must hold s.Mu and
// Group.Mu.
func (c *CapturedMessage) Launch(s *stream.Stream) (*End, error) {
	m, p := c.messages, c.plan
	if err := m.beginCall(s, p); err != nil {
		return nil, err
	}

	isSend := p.Operation == driver.Send
	if isSend {
		const needsSlot = false // the message already has one
		if err := m.outbox.awaitRoom(p, needsSlot); err != nil {
			return nil, err
		}
	}

	e := c.newEnd()
	m.Owner.NoteMessage(s, p.Call)
	if isSend {
		c.announce(e)
		return e, nil
	}

	if _, err := m.inbox.post(e); err != nil { // post never accepts the message of a captured Recv
		return nil, m.Plane.Fail(err)
	}

	return e, nil
}

// newEnd returns the Send or Recv of the next launch. The caller must hold Group.Mu.
func (c *CapturedMessage) newEnd() *End {
	e := c.messages.newEnd(c.plan)
	e.state = c.state
	e.descriptor = c.descriptor
	e.isCaptured = true
	e.previousLaunch = c.lastLaunch
	c.lastLaunch = e
	return e
}

// announce announces the message of a launch to the receiver.
func (c *CapturedMessage) announce(e *End) {
	o := c.messages.outbox
	receiver := c.plan.Root
	flags := o.flagsTo(receiver)
	e.arrivedFlag = &flags.arrived[c.staged.slot]
	e.copiedFlag = &flags.copied[c.staged.slot]
	headers := o.peers[receiver].mailbox.headersFrom(o.config.Rank)
	e.canOverwriteFlag = &headers.canOverwrite
	const isInGraph = true
	o.announce(e, c.staged, isInGraph)
}

// release frees the resources of a closed graph's message. The caller must hold Group.Mu.
func (c *CapturedMessage) release() {
	m := c.messages
	switch {
	case c.descriptor != nil:
		m.Device.Descriptors.Put(c.descriptor) // includes the state
	case c.state != nil:
		m.Device.GPU.Words.Put(c.state)
	}

	if c.plan.Operation == driver.Send && !m.closed {
		// If the receiver still has to copy the last message, a later reclaim frees the memory.
		out := &m.outbox.peers[c.plan.Root]
		out.uncopied = append(out.uncopied, c.staged)
		m.outbox.reclaim(out)
	}
}
