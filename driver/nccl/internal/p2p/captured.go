package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// CapturedMessage is a Send or a Recv in a CUDA graph. Each launch sends or receives another
// message, but all launches of a Send use the same memory and flags. A launch of a Send therefore
// waits until the receiver has copied the previous message and set the flag copied.
type CapturedMessage struct {
	messages   *Messages
	plan       *Plan
	staged     stagedMessage    // memory and flags of a Send
	descriptor *kernels.Message // of a Recv: what the GPU copies when the message has arrived
	state      *gpu.Word        // kernels.MessageWaits while the stream waits in a launch
	lastLaunch *End             // the Send or Recv of the latest launch, or nil
}

// record adds the Send or Recv to the capture of s. After an error, a part of it may have been
// captured. The CUDA context must be current.
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

// recordSend makes each launch wait for the flag copied before it overwrites the message. During
// this wait, the state is kernels.MessageWaits.
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

// Launch prepares a launch of the graph. It announces the message of a Send to the receiver, or
// registers a Recv for delivery. The caller must hold s.Mu and Group.Mu, and queue the launch next.
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

	if _, err := m.inbox.post(e); err != nil { // never accepts the message of a captured Recv
		return nil, m.Plane.Fail(err)
	}

	return e, nil
}

// newEnd returns the End of the next launch. The caller must hold Group.Mu.
func (c *CapturedMessage) newEnd() *End {
	e := c.messages.newEnd(c.plan)
	e.state = c.state
	e.descriptor = c.descriptor
	e.isCaptured = true
	e.previousLaunch = c.lastLaunch
	c.lastLaunch = e
	return e
}

func (c *CapturedMessage) announce(e *End) {
	o := c.messages.outbox
	receiver := c.plan.Root
	flags := o.flagsTo(receiver)
	e.arrivedFlag = &flags.arrived[c.staged.slot]
	e.copiedFlag = &flags.copied[c.staged.slot]
	headers := o.peers[receiver].mailbox.headersFrom(o.config.Rank)
	e.canOverwriteFlag = &headers.canOverwrite
	o.announce(e, c.staged)
}

// release frees the resources of the message after its graph is closed. The caller must hold
// Group.Mu.
func (c *CapturedMessage) release() {
	m := c.messages
	switch {
	case c.descriptor != nil:
		m.Device.Descriptors.Put(c.descriptor) // includes the state
	case c.state != nil:
		m.Device.GPU.Words.Put(c.state)
	}

	if c.plan.Operation == driver.Send && !m.closed {
		out := &m.outbox.peers[c.plan.Root]
		out.uncopied = append(out.uncopied, c.staged)
		m.outbox.reclaim(out) // keeps the memory until the receiver has copied the last message
	}
}
