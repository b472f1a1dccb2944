package p2p

import (
	"errors"
	"slices"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// send queues a Send. Its stream continues whether or not the peer receives. s.Mu and m.Mu are
// held.
func (m *Messages) send(s *stream.Stream, p *Plan) error {
	st, err := m.stage(p)
	if isOutOfRoom(err) {
		return err // before anything has happened
	}
	if err != nil {
		return m.failUnqueued(s, p, err)
	}
	e := m.newEnd(p)
	m.Owner.NoteMessage(s, p.Call)
	err = m.Device.GPU.Do(func() error {
		return errors.Join(m.queueSend(p, st, s.CUDA), m.track(s, e), s.RecordQueued())
	})
	if err != nil {
		return m.failUnqueued(s, p, err)
	}
	out := &m.peers[p.Root]
	out.staged = append(out.staged, st)
	m.announce(e, st, 0)
	return nil
}

// receive queues a Recv. s.Mu and m.Mu are held.
func (m *Messages) receive(s *stream.Stream, p *Plan) error {
	e := m.newEnd(p)
	var err error
	e.descriptor, err = gpu.Get(m.Device.GPU, func() (*kernels.Message, error) {
		return m.Device.Descriptors.Take(m.Device.GPU.CUDA)
	})
	if err != nil {
		return m.failUnqueued(s, p, err)
	}
	e.state = (*gpu.Word)(&e.descriptor.State)
	m.Owner.NoteMessage(s, p.Call)
	now, err := m.post(e)
	if err != nil {
		m.Device.Descriptors.Put(e.descriptor)
		err = m.Plane.Fail(err)
		s.MarkReported(m.Owner)
		return err
	}
	if now {
		m.startCopy(e)
	}
	m.expect(e)
	err = m.Device.GPU.Do(func() error {
		return errors.Join(m.queueCopy(e.descriptor, p, s.CUDA), s.RecordQueued())
	})
	if err != nil {
		m.unexpect(e)
		return m.failUnqueued(s, p, err)
	}
	return nil
}

// queueCopy queues the wait for a message and its copy, eagerly or in a capture. It is called on a
// thread of the device.
func (m *Messages) queueCopy(descriptor *kernels.Message, p *Plan, on cuda.Stream) error {
	api := m.Device.GPU.CUDA
	err := api.StreamWriteValue(on, gpu.AddressOf(&descriptor.State), kernels.MessageWaits)
	if err == nil {
		err = api.StreamWaitValue(on, gpu.AddressOf(&descriptor.Go), 1, cuda.WaitEqual)
	}
	params := cuda.ParamsOf(&struct{ message uintptr }{gpu.AddressOf(descriptor)})
	for _, k := range kernels.Copies(p.bytes()) {
		if err != nil {
			return err
		}
		var f cuda.Function
		if f, err = m.Device.Copies.Function(m.Device.GPU, k.Kernel); err == nil {
			err = api.LaunchKernel(f, k.Blocks, k.Threads, on, &params)
		}
	}
	return err
}

// track notes a Send that was queued on a stream, whose lock is held. It is called on a thread of
// the device.
func (m *Messages) track(s *stream.Stream, e *End) error {
	e.done = m.Device.Streams.NewEvent()
	err := e.done.Record(s.CUDA)
	m.mu.Lock()
	m.sends = append(m.sends, e)
	many := len(m.sends) > 2*m.looked+manySends
	m.mu.Unlock()
	if many {
		m.pruneSends()
	}
	return err
}

// manySends is how many are kept before they are looked through.
const manySends = 64

// pruneSends forgets those that streams have come past. It asks CUDA, which may wait for a stream,
// so nothing that gives receives their messages waits for it.
func (m *Messages) pruneSends() {
	m.mu.Lock()
	all := slices.Clone(m.sends)
	m.mu.Unlock()
	over := map[*End]bool{}
	for _, e := range all {
		over[e] = e.done.Done()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sends = slices.DeleteFunc(m.sends, func(e *End) bool {
		if over[e] {
			e.handled, e.before = true, nil
		}
		return over[e]
	})
	m.looked = len(m.sends)
}
