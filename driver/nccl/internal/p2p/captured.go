package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// CapturedMessage is a Send or a Recv in a CUDA graph. Each launch of the graph transfers a new
// message. All launches of a Send use the same memory and flags, so each launch first waits until
// the receiver has copied the previous message.
type CapturedMessage struct {
	messages   *Messages
	plan       *Plan
	staged     stagedMessage    // slot and staging memory of a Send
	descriptor *kernels.Message // addresses of a Recv's copy; nil for a Send
	state      *gpu.Word        // see End.state
	lastLaunch *End             // nil before the first launch
}

// capture adds the Send or Recv to the capture of s. After an error, the capture may contain only
// some of the operations. The CUDA context must be current.
func (c *CapturedMessage) capture(s *stream.Stream) error {
	if c.plan.Operation == driver.Recv {
		return c.captureReceive(s)
	}

	return c.captureSend(s)
}

func (c *CapturedMessage) captureReceive(s *stream.Stream) error {
	d := c.messages.Device
	descriptor, err := d.Descriptors.Take(d.GPU.CUDA)
	if err != nil {
		return err
	}

	c.descriptor = descriptor
	c.state = (*gpu.Word)(&descriptor.State)
	return c.messages.queueCopy(descriptor, c.plan, s.CUDA)
}

// captureSend captures the Send after a wait until the receiver has copied the previous message.
func (c *CapturedMessage) captureSend(s *stream.Stream) error {
	m := c.messages
	api := m.Device.GPU.CUDA
	state, err := m.Device.GPU.Words.Take(api)
	if err != nil {
		return err
	}

	c.state = state
	receiver := c.plan.Root
	box := m.outbox.peers[receiver].mailbox
	copiedFlag := &m.outbox.flagsTo(receiver).copied[c.staged.slot]
	copiedAddress := box.deviceAddress(copiedFlag)
	if err := api.StreamWriteValue(s.CUDA, state.Address(), kernels.MessageWaits); err != nil {
		return err
	}

	if err := api.StreamWaitValue(s.CUDA, copiedAddress, flagSet, cuda.WaitEqual); err != nil {
		return err
	}

	if err := api.StreamWriteValue(s.CUDA, copiedAddress, flagCleared); err != nil {
		return err
	}

	if err := api.StreamWriteValue(s.CUDA, state.Address(), notWaiting); err != nil {
		return err
	}

	return m.outbox.queueSend(c.plan, c.staged, s.CUDA)
}

// PrepareLaunch prepares a launch of the graph on s. The caller must hold s.Mu and Group.Mu until
// it has queued the launch.
func (c *CapturedMessage) PrepareLaunch(s *stream.Stream) (*End, error) {
	if err := c.messages.beginCall(s, c.plan); err != nil {
		return nil, err
	}

	if c.plan.Operation == driver.Send {
		return c.prepareSend(s)
	}

	return c.prepareReceive(s)
}

// prepareSend announces the launch's message to the receiver.
func (c *CapturedMessage) prepareSend(s *stream.Stream) (*End, error) {
	m := c.messages
	const needsSlot = false // Messages.Record has reserved it
	if err := m.outbox.awaitRoom(c.plan, needsSlot); err != nil {
		return nil, err
	}

	e := c.newEnd()
	m.Owner.NoteMessage(s, c.plan.Call)
	c.setFlagAddresses(e)
	m.outbox.announce(e, c.staged)
	return e, nil
}

// prepareReceive registers the launch's Recv for delivery.
func (c *CapturedMessage) prepareReceive(s *stream.Stream) (*End, error) {
	m := c.messages
	e := c.newEnd()
	m.Owner.NoteMessage(s, c.plan.Call)
	if _, err := m.inbox.post(e); err != nil { // false for a captured Recv
		return nil, m.Plane.Fail(err)
	}

	return e, nil
}

// AddReceive starts the delivery of a captured Recv's message. Call it before launching the graph.
func (e *End) AddReceive() { e.messages.inbox.addReceive(e) }

// RemoveReceive undoes AddReceive if the graph could not be launched.
func (e *End) RemoveReceive() { e.messages.inbox.removeReceive(e) }

// AddSend tracks a captured Send until it completes. Call it after launching the graph. The CUDA
// context must be current, and the caller must hold the stream's lock.
func (e *End) AddSend(s *stream.Stream) error { return e.messages.addSend(s, e) }

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

// setFlagAddresses stores the addresses of the Send's flags in e.
func (c *CapturedMessage) setFlagAddresses(e *End) {
	o := c.messages.outbox
	receiver := c.plan.Root
	flags := o.flagsTo(receiver)
	e.arrivedFlag = &flags.arrived[c.staged.slot]
	e.copiedFlag = &flags.copied[c.staged.slot]
	headers := o.peers[receiver].mailbox.headersFrom(o.config.Rank)
	e.canOverwriteFlag = &headers.canOverwrite
}

// release frees the memory and flags after the graph has been closed. The caller must hold
// Group.Mu.
func (c *CapturedMessage) release() {
	m := c.messages
	switch {
	case c.descriptor != nil:
		m.Device.Descriptors.Put(c.descriptor) // includes c.state
	case c.state != nil:
		m.Device.GPU.Words.Put(c.state)
	}

	if c.plan.Operation == driver.Send && !m.closed {
		out := &m.outbox.peers[c.plan.Root]
		out.uncopied = append(out.uncopied, c.staged) // freed once the receiver has copied the message
		m.outbox.reclaim(out)
	}
}
