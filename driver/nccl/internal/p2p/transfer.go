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

// send queues a Send and announces its message to the receiver. The caller must hold s.Mu and m.Mu.
func (m *Messages) send(s *stream.Stream, p *Plan) error {
	staged, err := m.outbox.reserve(p)
	if isOutOfRoom(err) {
		return err // the Send has had no effect
	}

	if err != nil {
		return m.failUnqueued(s, p, err)
	}

	e := m.newEnd(p)
	m.Owner.NoteMessage(s, p.Call)
	err = m.Device.GPU.Do(func() error {
		sendErr := m.outbox.queueSend(p, staged, s.CUDA) // may queue a part before it fails
		addErr := m.addSend(s, e)
		recordErr := s.RecordQueued()
		return errors.Join(sendErr, addErr, recordErr)
	})
	if err != nil {
		return m.failUnqueued(s, p, err)
	}

	out := &m.outbox.peers[p.Root]
	out.uncopied = append(out.uncopied, staged)
	m.outbox.announce(e, staged)
	return nil
}

// receive queues a Recv and starts the delivery of its message. The caller must hold s.Mu and m.Mu.
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
		cause := m.Plane.Fail(err)
		s.MarkReported(m.Owner) // receive returns the fault
		return cause
	}

	if accepted {
		m.inbox.startCopy(e)
	}

	m.inbox.addReceive(e)
	err = m.Device.GPU.Do(func() error {
		copyErr := m.queueCopy(e.descriptor, p, s.CUDA)
		recordErr := s.RecordQueued()
		return errors.Join(copyErr, recordErr)
	})
	if err != nil {
		m.inbox.removeReceive(e)
		return m.failUnqueued(s, p, err)
	}

	return nil
}

// queueCopy queues the wait for a message, and kernels that copy the message. The CUDA context must
// be current.
func (m *Messages) queueCopy(descriptor *kernels.Message, p *Plan, s cuda.Stream) error {
	api := m.Device.GPU.CUDA
	err := api.StreamWriteValue(s, gpu.AddressOf(&descriptor.State), kernels.MessageWaits)
	if err != nil {
		return err
	}

	err = api.StreamWaitValue(s, gpu.AddressOf(&descriptor.Go), flagSet, cuda.WaitEqual)
	if err != nil {
		return err
	}

	params := cuda.ParamsOf(&struct{ message uintptr }{gpu.AddressOf(descriptor)})
	for _, launch := range kernels.Copies(p.bytes()) {
		f, err := m.Device.Copies.Function(m.Device.GPU, launch.Kernel)
		if err != nil {
			return err
		}

		if err := api.LaunchKernel(f, launch.Blocks, launch.Threads, s, &params); err != nil {
			return err
		}
	}

	return nil
}

// Record adds a Send or a Recv to a stream's capture of a CUDA graph. keep must store the
// CapturedMessage until the graph is closed. The caller must hold s.Mu and m.Mu.
func (m *Messages) Record(s *stream.Stream, p *Plan, keep func(*CapturedMessage)) error {
	c := &CapturedMessage{messages: m, plan: p}
	if p.Operation == driver.Send {
		staged, err := m.outbox.reserve(p)
		if isOutOfRoom(err) {
			return err
		}

		if err != nil {
			return m.Owner.FailUnqueued(p.Call, err)
		}

		c.staged = staged
		// The first launch has no previous message to wait for.
		atomic.StoreUint32(&m.outbox.flagsTo(p.Root).copied[staged.slot], flagSet)
	}

	keep(c)
	if err := m.Device.GPU.Do(func() error { return c.capture(s) }); err != nil {
		return m.Owner.FailUnqueued(p.Call, err) // part of the message may be captured
	}

	return nil
}

// addSend records an event after a queued Send, and always adds the Send to m.unfinishedSends. The
// CUDA context must be current, and the caller must hold the stream's lock.
func (m *Messages) addSend(s *stream.Stream, e *End) error {
	e.doneEvent = m.Device.Streams.NewEvent()
	err := e.doneEvent.Record(s.CUDA)
	m.inbox.mu.Lock()
	m.unfinishedSends = append(m.unfinishedSends, e)
	// The list doubles between prunes, so a Send takes constant amortized time.
	pruneThreshold := 2*m.sendsAfterPrune + minNewSends
	mustPrune := len(m.unfinishedSends) > pruneThreshold
	m.inbox.mu.Unlock()
	if mustPrune {
		m.pruneSends()
	}

	return err
}

// minNewSends is the minimum number of Sends between two calls of pruneSends by addSend.
const minNewSends = 64

// pruneSends removes completed Sends from m.unfinishedSends. It queries CUDA without holding
// inbox.mu, because the query may wait until another message has been delivered.
func (m *Messages) pruneSends() {
	m.inbox.mu.Lock()
	sends := slices.Clone(m.unfinishedSends)
	m.inbox.mu.Unlock()
	isDone := map[*End]bool{}
	for _, e := range sends {
		isDone[e] = e.doneEvent.Done()
	}

	m.inbox.mu.Lock()
	defer m.inbox.mu.Unlock()
	m.unfinishedSends = slices.DeleteFunc(m.unfinishedSends, func(e *End) bool {
		if isDone[e] { // false for Sends that were added meanwhile
			e.isHandled = true
			e.previousLaunch = nil
		}

		return isDone[e]
	})
	m.sendsAfterPrune = len(m.unfinishedSends)
}
