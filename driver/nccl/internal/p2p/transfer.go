package p2p

import (
	"errors"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

func (m *Messages) send(s *stream.Stream, p *Plan) error {
	staged, err := m.outbox.reserve(p)
	if isOutOfRoom(err) {
		return err
	}
	if err != nil {
		return m.failUnqueued(s, p, err)
	}
	e := m.newEnd(p)
	m.Owner.NoteMessage(s, p.Call)
	err = m.Device.GPU.Do(func() error {
		return errors.Join(m.outbox.queueSend(p, staged, s.CUDA), m.addSend(s, e), s.RecordQueued())
	})
	if err != nil {
		return m.failUnqueued(s, p, err)
	}
	out := &m.outbox.peers[p.Root]
	out.uncopied = append(out.uncopied, staged)
	m.outbox.announce(e, staged, 0)
	return nil
}

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
	accepted, err := m.inbox.post(e)
	if err != nil {
		m.Device.Descriptors.Put(e.descriptor)
		err = m.Plane.Fail(err)
		s.MarkReported(m.Owner)
		return err
	}
	if accepted {
		m.inbox.startCopy(e)
	}
	m.inbox.addReceive(e)
	err = m.Device.GPU.Do(func() error {
		return errors.Join(m.queueCopy(e.descriptor, p, s.CUDA), s.RecordQueued())
	})
	if err != nil {
		m.inbox.removeReceive(e)
		return m.failUnqueued(s, p, err)
	}
	return nil
}

// Record adds a Send or a Recv to a stream's capture. keep must store the CapturedMessage until the
// graph is closed. The caller must hold s.Mu and m.Mu.
func (m *Messages) Record(s *stream.Stream, p *Plan, keep func(*CapturedMessage)) error {
	c := &CapturedMessage{messages: m, plan: p}
	if p.Operation == driver.Send {
		var err error
		if c.staged, err = m.outbox.reserve(p); isOutOfRoom(err) {
			return err
		} else if err != nil {
			return m.Owner.FailUnqueued(p.Call, err)
		}
		// The first launch must not wait for an earlier message.
		atomic.StoreUint32(&m.outbox.flagsTo(p.Root).copied[c.staged.slot], 1)
	}
	keep(c)
	if err := m.Device.GPU.Do(func() error { return c.record(s) }); err != nil {
		return m.Owner.FailUnqueued(p.Call, err) // part of the message may be captured
	}
	return nil
}

// queueCopy queues the wait for a message and the kernel that copies it. The CUDA context must be
// current.
func (m *Messages) queueCopy(descriptor *kernels.Message, p *Plan, s cuda.Stream) error {
	api := m.Device.GPU.CUDA
	err := api.StreamWriteValue(s, gpu.AddressOf(&descriptor.State), kernels.MessageWaits)
	if err == nil {
		err = api.StreamWaitValue(s, gpu.AddressOf(&descriptor.Go), 1, cuda.WaitEqual)
	}
	params := cuda.ParamsOf(&struct{ message uintptr }{gpu.AddressOf(descriptor)})
	for _, launch := range kernels.Copies(p.bytes()) {
		if err != nil {
			return err
		}
		var f cuda.Function
		if f, err = m.Device.Copies.Function(m.Device.GPU, launch.Kernel); err == nil {
			err = api.LaunchKernel(f, launch.Blocks, launch.Threads, s, &params)
		}
	}
	return err
}

// addSend adds a queued Send to the unfinished sends. The CUDA context must be current, and the
// caller must hold the stream's lock.
func (m *Messages) addSend(s *stream.Stream, e *End) error {
	e.doneEvent = m.Device.Streams.NewEvent()
	err := e.doneEvent.Record(s.CUDA)
	m.inbox.mu.Lock()
	m.unfinishedSends = append(m.unfinishedSends, e)
	mustPrune := len(m.unfinishedSends) > 2*m.sendsAfterPrune+minNewSends
	m.inbox.mu.Unlock()
	if mustPrune {
		m.pruneSends()
	}
	return err
}

const minNewSends = 64 // after these, addSend calls pruneSends

// pruneSends removes completed sends. It queries CUDA without the locks of the delivery, because
// the query may wait for a stream that is itself waiting for a message.
func (m *Messages) pruneSends() {
	m.inbox.mu.Lock()
	all := slices.Clone(m.unfinishedSends)
	m.inbox.mu.Unlock()
	done := map[*End]bool{}
	for _, e := range all {
		done[e] = e.doneEvent.Done()
	}
	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.unfinishedSends = slices.DeleteFunc(m.unfinishedSends, func(e *End) bool {
		if done[e] {
			e.isHandled, e.previousLaunch = true, nil
		}
		return done[e]
	})
	m.sendsAfterPrune = len(m.unfinishedSends)
}
