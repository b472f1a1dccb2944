package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// CapturedMessage is a Send or a Recv in a graph. The graph owns its words of host memory, and the
// slot and the staging block of a Send.
type CapturedMessage struct {
	messages   *Messages
	plan       *Plan
	staged     stagedMessage    // for a Send
	descriptor *kernels.Message // for a Recv
	state      *gpu.Word        // see End.state
	last       *End             // end of the latest launch, or nil
}

// record adds the message to a capture. The context must be current.
func (c *CapturedMessage) record(s *stream.Stream) (err error) {
	m, target := c.messages, s.CUDA
	d := m.Device
	api := d.GPU.CUDA
	if c.plan.Operation == driver.Recv {
		if c.descriptor, err = d.Descriptors.Take(api); err != nil {
			return err
		}
		c.state = (*gpu.Word)(&c.descriptor.State)
		return m.queueCopy(c.descriptor, c.plan, target)
	}
	if c.state, err = d.GPU.Words.Take(api); err != nil {
		return err
	}
	box := m.out.peers[c.plan.Root].mailbox
	taken := box.deviceAddress(&box.flags(m.Config.Rank).taken[c.staged.slot])
	if err = api.StreamWriteValue(target, c.state.Address(), kernels.MessageWaits); err != nil {
		return err
	}
	if err = api.StreamWaitValue(target, taken, 1, cuda.WaitEqual); err != nil {
		return err
	}
	if err = api.StreamWriteValue(target, taken, 0); err != nil {
		return err
	}
	if err = api.StreamWriteValue(target, c.state.Address(), 0); err != nil {
		return err
	}
	return m.out.queueSend(c.plan, c.staged, target)
}

// Launch assigns a message number to one launch of the graph, and announces the Send or posts the
// Recv. The caller must hold s.Mu and the group's Mu.
func (c *CapturedMessage) Launch(s *stream.Stream) (*End, error) {
	m, p := c.messages, c.plan
	if err := m.admit(s, p); err != nil {
		return nil, err
	}
	if p.Operation == driver.Send {
		if err := m.out.awaitRoom(p, false); err != nil {
			return nil, err
		}
	}
	e := m.newEnd(p)
	e.state, e.descriptor, e.captured = c.state, c.descriptor, true
	e.previous, c.last = c.last, e
	m.Owner.NoteMessage(s, p.Call)
	if p.Operation == driver.Send {
		words := m.out.flagsTo(p.Root)
		e.fullWord, e.takenWord = &words.full[c.staged.slot], &words.taken[c.staged.slot]
		e.releasedWord = &m.out.peers[p.Root].mailbox.ring(m.Config.Rank).released
		m.out.announce(e, c.staged, 1)
		return e, nil
	}
	if _, err := m.in.post(e); err != nil {
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
		out := &m.out.peers[c.plan.Root]
		out.staged = append(out.staged, c.staged)
		m.out.reclaim(out, true)
	}
}
