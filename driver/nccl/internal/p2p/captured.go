package p2p

import (
	"context"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
)

// Captured is a message in a graph. It has words, and a Send its slot and block, for as long as
// the graph.
type Captured struct {
	of     *Messages
	plan   *Plan
	staged outgoing
	// descriptor is a Recv's; state is that of its ends, or nil.
	descriptor *kernels.Message
	state      *gpu.Word
	// last is the end of the latest launch, or nil.
	last *End
}

// Record puts a message into the capture of a stream, and hands it to keep, which keeps it as long
// as the graph. s.Mu and m.Mu are held.
func (m *Messages) Record(s *stream.Stream, p *Plan, keep func(*Captured)) error {
	k := &Captured{of: m, plan: p}
	if p.Operation == driver.Send {
		var err error
		if k.staged, err = m.stage(p); isOutOfRoom(err) {
			return err // before anything has happened
		} else if err != nil {
			return m.Owner.FailUnqueued(p.Call, err)
		}
		// Before the first launch there is no message to take.
		atomic.StoreUint32(&m.flagsTo(p.Root).taken[k.staged.slot], 1)
	}
	keep(k)
	if err := m.Device.GPU.Do(func() error { return k.record(s) }); err != nil {
		return m.Owner.FailUnqueued(p.Call, err) // half a message is in the capture
	}
	return nil
}

// record puts the work of a message into the capture. It is called on a thread of the device.
func (k *Captured) record(s *stream.Stream) (err error) {
	m, on := k.of, s.CUDA
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
	to := m.peers[k.plan.Root].mailbox
	word := to.at(&to.flags(m.Config.Rank).taken[k.staged.slot])
	if err = api.StreamWriteValue(on, k.state.Address(), kernels.MessageWaits); err != nil {
		return err
	}
	if err = take(api, word, on); err != nil {
		return err
	}
	if err = api.StreamWriteValue(on, k.state.Address(), 0); err != nil {
		return err
	}
	return m.queueSend(k.plan, k.staged, on)
}

// Launch numbers a message of a launch, and announces it to the peer or waits for it. s.Mu and m.Mu
// are held.
func (k *Captured) Launch(s *stream.Stream) (*End, error) {
	m, p := k.of, k.plan
	if err := m.mayMessage(s, p); err != nil {
		return nil, err
	}
	if p.Operation == driver.Send {
		if err := m.awaitRoom(p, false); err != nil {
			return nil, err
		}
	}
	e := m.newEnd(p)
	e.state, e.descriptor, e.captured = k.state, k.descriptor, true
	e.before, k.last = k.last, e
	m.Owner.NoteMessage(s, p.Call)
	if p.Operation == driver.Send {
		marks := m.flagsTo(p.Root)
		e.full, e.takenWord = &marks.full[k.staged.slot], &marks.taken[k.staged.slot]
		e.released = &m.peers[p.Root].mailbox.ring(m.Config.Rank).released
		m.announce(e, k.staged, 1)
		return e, nil
	}
	if _, err := m.post(e); err != nil {
		return nil, m.Plane.Fail(err)
	}
	return e, nil
}

// ReleaseGraph takes back what messages of a graph have, all of whose launches have ended.
func (m *Messages) ReleaseGraph(calls []*Captured) {
	own := map[*gpu.Word]bool{}
	for _, k := range calls {
		if k.of == m && k.state != nil {
			own[k.state] = true
		}
	}
	if len(own) == 0 {
		return
	}
	// A call that does not end has the lock: then the graph's words stay for as long as the process.
	ctx, cancel := context.WithTimeout(context.Background(), m.Device.GPU.Timeout)
	defer cancel()
	if gpu.Poll(ctx, m.Mu.TryLock) != nil {
		return
	}
	defer m.Mu.Unlock()
	m.mu.Lock()
	gone := func(e *End) bool { return e.captured && own[e.state] }
	m.sends = slices.DeleteFunc(m.sends, gone)
	m.receives = slices.DeleteFunc(m.receives, gone)
	m.open = slices.DeleteFunc(m.open, gone)
	m.mu.Unlock()
	for _, k := range calls {
		if k.of == m {
			k.release()
		}
	}
}

// release takes back what a message has. m.Mu is held.
func (k *Captured) release() {
	m := k.of
	switch {
	case k.descriptor != nil:
		m.Device.Descriptors.Put(k.descriptor)
	case k.state != nil:
		m.Device.GPU.Words.Put(k.state)
	}
	if k.plan.Operation == driver.Send && !m.closed {
		out := &m.peers[k.plan.Root]
		out.staged = append(out.staged, k.staged)
		m.reclaim(out, true)
	}
}
