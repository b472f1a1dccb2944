package p2p

import (
	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// Captured is one end of a message in a graph. The graph keeps its words and, for a Send, the slot
// and the staging block.
type Captured struct {
	messages   *Messages
	plan       *Plan
	staged     outgoing         // of a Send
	descriptor *kernels.Message // of a Recv
	state      *gpu.Word        // state word of all launches (End.state)
	last       *End             // end of the latest launch, or nil
}

// record adds the work of a message to a capture. It must be called on a thread of the context.
func (k *Captured) record(s *stream.Stream) (err error) {
	m, on := k.messages, s.CUDA
	d := m.Device
	api := d.GPU.CUDA
	if k.plan.Operation == driver.Recv {
		if k.descriptor, err = d.Descriptors.Take(api); err != nil {
			return err
		}
		k.state = (*gpu.Word)(&k.descriptor.State)
		return m.queueCopy(k.descriptor, k.plan, on)
	}
	if k.state, err = d.GPU.Words.Take(api); err != nil {
		return err
	}
	box := m.out.peers[k.plan.Root].mailbox
	taken := box.deviceAddress(&box.flags(m.Config.Rank).taken[k.staged.slot])
	if err = api.StreamWriteValue(on, k.state.Address(), kernels.MessageWaits); err != nil {
		return err
	}
	if err = api.StreamWaitValue(on, taken, 1, cuda.WaitEqual); err != nil {
		return err
	}
	if err = api.StreamWriteValue(on, taken, 0); err != nil {
		return err
	}
	if err = api.StreamWriteValue(on, k.state.Address(), 0); err != nil {
		return err
	}
	return m.out.queueSend(k.plan, k.staged, on)
}

// Launch assigns a message number to one launch of the graph. It announces a Send to the peer, or
// posts a Recv. s.Mu and m.Mu are held.
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
