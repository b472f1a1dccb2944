package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// Captured is one end of a message in a graph: a Send or a Recv. Its words of host memory stay
// allocated as long as the graph exists, and so do the slot and the staging block of a Send.
type Captured struct {
	messages   *Messages
	plan       *Plan
	staged     outgoing         // for a Send
	descriptor *kernels.Message // for a Recv
	state      *gpu.Word        // shared by all launches; see End.state
	last       *End             // end of the latest launch, or nil
}

// record adds the work of a message to a capture. It must be called on a thread where the context
// is current.
func (k *Captured) record(s *stream.Stream) (err error) {
	m, target := k.messages, s.CUDA
	d := m.Device
	api := d.GPU.CUDA
	if k.plan.Operation == driver.Recv {
		if k.descriptor, err = d.Descriptors.Take(api); err != nil {
			return err
		}
		k.state = (*gpu.Word)(&k.descriptor.State)
		return m.queueCopy(k.descriptor, k.plan, target)
	}
	if k.state, err = d.GPU.Words.Take(api); err != nil {
		return err
	}
	box := m.out.peers[k.plan.Root].mailbox
	taken := box.deviceAddress(&box.flags(m.Config.Rank).taken[k.staged.slot])
	if err = api.StreamWriteValue(target, k.state.Address(), kernels.MessageWaits); err != nil {
		return err
	}
	if err = api.StreamWaitValue(target, taken, 1, cuda.WaitEqual); err != nil {
		return err
	}
	if err = api.StreamWriteValue(target, taken, 0); err != nil {
		return err
	}
	if err = api.StreamWriteValue(target, k.state.Address(), 0); err != nil {
		return err
	}
	return m.out.queueSend(k.plan, k.staged, target)
}

// Launch assigns a message number to one launch of the graph, and then announces the Send to the
// peer or posts the Recv. The caller must hold s.Mu and the group's Mu.
func (k *Captured) Launch(s *stream.Stream) (*End, error) {
	m, p := k.messages, k.plan
	if err := m.admit(s, p); err != nil {
		return nil, err
	}
	if p.Operation == driver.Send {
		if err := m.out.awaitRoom(p, false); err != nil {
			return nil, err
		}
	}
	e := m.newEnd(p)
	e.state, e.descriptor, e.captured = k.state, k.descriptor, true
	e.previous, k.last = k.last, e
	m.Owner.NoteMessage(s, p.Call)
	if p.Operation == driver.Send {
		words := m.out.flagsTo(p.Root)
		e.full, e.takenWord = &words.full[k.staged.slot], &words.taken[k.staged.slot]
		e.released = &m.out.peers[p.Root].mailbox.ring(m.Config.Rank).released
		m.out.announce(e, k.staged, 1)
		return e, nil
	}
	if _, err := m.in.post(e); err != nil {
		return nil, m.Plane.Fail(err)
	}
	return e, nil
}

func (k *Captured) release() {
	m := k.messages
	switch {
	case k.descriptor != nil:
		m.Device.Descriptors.Put(k.descriptor)
	case k.state != nil:
		m.Device.GPU.Words.Put(k.state)
	}
	if k.plan.Operation == driver.Send && !m.closed {
		out := &m.out.peers[k.plan.Root]
		out.staged = append(out.staged, k.staged)
		m.out.reclaim(out, true)
	}
}
