package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// CapturedMessage is a Send or a Recv in a CUDA graph. All launches of the graph use the same
// words, slot and staging block.
type CapturedMessage struct {
	messages   *Messages
	plan       *Plan
	staged     stagedMessage    // for a Send
	descriptor *kernels.Message // for a Recv
	state      *gpu.Word        // see End.state
	lastLaunch *End             // the Send or Recv of the latest launch, or nil
}

// record adds the Send or Recv to the capture of s. The CUDA context must be current.
func (c *CapturedMessage) record(s *stream.Stream) (err error) {
	m, cudaStream := c.messages, s.CUDA
	d := m.Device
	api := d.GPU.CUDA
	if c.plan.Operation == driver.Recv {
		if c.descriptor, err = d.Descriptors.Take(api); err != nil {
			return err
		}
		c.state = (*gpu.Word)(&c.descriptor.State)
		return m.queueCopy(c.descriptor, c.plan, cudaStream)
	}
	if c.state, err = d.GPU.Words.Take(api); err != nil {
		return err
	}
	box := m.outbox.peers[c.plan.Root].mailbox
	copied := box.deviceAddress(&box.flags(m.Config.Rank).copied[c.staged.slot])
	// Each launch waits until the receiver has copied the previous launch's message.
	err = api.StreamWriteValue(cudaStream, c.state.Address(), kernels.MessageWaits)
	if err != nil {
		return err
	}
	if err = api.StreamWaitValue(cudaStream, copied, 1, cuda.WaitEqual); err != nil {
		return err
	}
	if err = api.StreamWriteValue(cudaStream, copied, 0); err != nil {
		return err
	}
	if err = api.StreamWriteValue(cudaStream, c.state.Address(), 0); err != nil {
		return err
	}
	return m.outbox.queueSend(c.plan, c.staged, cudaStream)
}

// Launch numbers the message of one launch of the graph. It announces a Send, or passes a Recv to
// the inbox. The caller must hold s.Mu and Group.Mu.
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
	e.state, e.descriptor, e.isCaptured = c.state, c.descriptor, true
	e.previousLaunch = c.lastLaunch
	c.lastLaunch = e
	m.Owner.NoteMessage(s, p.Call)
	if p.Operation == driver.Send {
		words := m.outbox.flagsTo(p.Root)
		e.arrivedWord = &words.arrived[c.staged.slot]
		e.copiedWord = &words.copied[c.staged.slot]
		e.canOverwriteWord = &m.outbox.peers[p.Root].mailbox.headersFrom(m.Config.Rank).canOverwrite
		const inGraph = 1
		m.outbox.announce(e, c.staged, inGraph)
		return e, nil
	}
	if _, err := m.inbox.post(e); err != nil {
		return nil, m.Plane.Fail(err)
	}
	return e, nil
}

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
		out.uncopied = append(out.uncopied, c.staged) // until the last message has been copied
		m.outbox.reclaim(out, true)
	}
}
