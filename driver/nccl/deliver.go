package nccl

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
	"symmem/internal/sys"
)

// deliver has a goroutine look for messages as long as receives wait. m.mu is held.
func (c *communicator) deliver() {
	m := &c.messages
	if m.running || m.stopped || len(m.open) == 0 {
		return
	}
	m.running = true
	m.delivering.Go(c.deliverAll)
}

// deliverAll delivers until no Recv waits, or the group has ended. It makes no call to CUDA, which
// may wait for a stream that waits for a message.
func (c *communicator) deliverAll() {
	ranked.Waiting()
	b := c.messages.own.bell()
	for turn := 0; ; turn++ {
		rung := atomic.LoadUint32(&b.word)
		ready, told, more, err := c.deliverable()
		for _, e := range ready {
			c.give(e)
		}
		if err != nil {
			_ = c.plane.Fail(err)
		}
		switch {
		case !more:
			return
		case len(ready) > 0:
			turn = 0
		default:
			b.rest(rung, turn, told)
		}
	}
}

const (
	// spins is how many looks a goroutine takes in a row, and yieldsOf how many more between which
	// it lets others run.
	spins, yieldsOf = 50, 200
	// idleNap is how long it sleeps where it will be woken.
	idleNap = 10 * time.Millisecond
)

// rest passes the time between two looks. Who tells of a message wakes this rank; GPUs do not.
func (b *bell) rest(rung uint32, turn int, told bool) {
	switch {
	case turn < spins && runtime.NumCPU() > 1:
	case turn < spins+yieldsOf:
		runtime.Gosched()
	default:
		slice := idleNap
		if told {
			slice = gpu.Nap
		}
		atomic.AddInt32(&b.sleeping, 1)
		sys.FutexWait(&b.word, rung, slice)
		atomic.AddInt32(&b.sleeping, -1)
	}
}

// deliverable takes the receives whose messages are there off the list of those that are open. It
// reports whether the others include some whose message was told of, or whose stream has yet to
// come, and whether there are others.
func (c *communicator) deliverable() (ready []*end, told, more bool, err error) {
	m := &c.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-c.ended:
		m.running = false
		return nil, false, false, nil
	default:
	}
	err = c.readMail()
	rest := m.open[:0]
	for _, e := range m.open {
		can := false
		if err == nil {
			can, err = c.take(e)
		}
		if can {
			ready = append(ready, e)
			continue
		}
		told = told || e.letter != nil
		rest = append(rest, e)
	}
	clear(m.open[len(rest):])
	m.open = rest
	told = told || m.anywhere > 0 && len(m.told) > 0
	m.running = len(rest) > 0 || len(ready) > 0
	return ready, told, m.running, err
}

// take settles that a Recv is given its message now, if that is there, no other one that needs the
// same words has to be copied before, and its memory is mapped. m.mu is held.
func (c *communicator) take(e *end) (can bool, err error) {
	m, l := &c.messages, e.letter
	if l == nil || !e.turn() || !l.next() || !m.there(l) {
		return false, nil
	}
	if l.bytes > 0 {
		lent := c.lentTo(l)
		if lent.bytes != int64(l.size) {
			return false, c.errImpossible(l)
		}
		if lent.at == 0 {
			return false, lent.failed
		}
		e.descriptor.From = uint64(lent.at) + l.offset
	}
	if !m.claim(l) {
		return false, nil
	}
	e.descriptor.To, e.descriptor.Bytes = uint64(e.plan.recv), l.bytes
	e.descriptor.Taken = uint64(m.own.at(&m.own.marks(l.source).taken[l.place]))
	e.handle()
	l.handled, l.before = true, nil
	return true, nil
}

// there reports whether a message can be copied: it is there, and will stay. m.mu is held.
func (m *messages) there(l *letter) bool {
	return atomic.LoadUint32(&m.own.marks(l.source).full[l.place]) == 1 && !m.released(l)
}

// released reports whether the sender may write over a message that was not taken: see release.
// m.mu is held.
func (m *messages) released(l *letter) bool {
	return l.again != 0 && atomic.LoadUint32(&m.own.box(l.source).released) != 0
}

// claim takes a message, unless its sender takes it back at the same time. m.mu is held.
func (m *messages) claim(l *letter) bool {
	full := &m.own.marks(l.source).full[l.place]
	if !atomic.CompareAndSwapUint32(full, 1, 0) {
		return false
	}
	if m.released(l) {
		atomic.StoreUint32(full, 1) // so that release goes on
		return false
	}
	return true
}

// turn reports whether a Recv may be given a message: that of a graph has its descriptor to itself
// once the launch before is past it and this one waits. m.mu is held.
func (e *end) turn() bool {
	return !e.captured ||
		(e.before == nil || e.before.handled) && e.state.Value() == kernels.MessageWaits
}

// handle settles that a Recv has what it waits for. m.mu is held.
func (e *end) handle() {
	if e.captured {
		e.state.Set(0) // so that the next launch is seen to wait
	}
	e.handled, e.before = true, nil
}

// give lets the stream of a Recv that was settled go on.
func (c *communicator) give(e *end) {
	if arrived := e.plan.Arrived; arrived != nil {
		arrived(e.source)
		c.device.streams.Order.Add(1)
	}
	atomic.StoreUint32(&e.descriptor.Go, 1)
}

// queueCopy queues the wait for a message and its copy, eagerly or in a capture. It is called on a
// thread of the device.
func (c *communicator) queueCopy(descriptor *kernels.Message, p *plan, on cuda.Stream) error {
	api := c.device.gpu.CUDA
	err := api.StreamWriteValue(on, gpu.AddressOf(&descriptor.State), kernels.MessageWaits)
	if err == nil {
		err = api.StreamWaitValue(on, gpu.AddressOf(&descriptor.Go), 1, cuda.WaitEqual)
	}
	var params cuda.Params
	params.Address(gpu.AddressOf(descriptor))
	for _, k := range kernels.Copies(p.bytes()) {
		if err != nil {
			return err
		}
		var f cuda.Function
		if f, err = c.device.copies.Function(c.device.gpu, k.Kernel); err == nil {
			err = api.LaunchKernel(f, cuda.Dim{X: uint32(k.Blocks)}, cuda.Dim{X: uint32(k.Threads)}, 0,
				on, &params)
		}
	}
	return err
}

// stopMessages ends what delivers messages. The group has ended.
func (c *communicator) stopMessages() {
	m := &c.messages
	if m.known == nil {
		return
	}
	m.mu.Lock()
	m.stopped = true
	if m.own != nil {
		m.own.bell().ring()
	}
	m.mu.Unlock()
	m.delivering.Wait()
}

// closeMessages gives everything back, unless a stream has yet to come past a message: then it
// stays for as long as the process.
func (c *communicator) closeMessages() error {
	c.stopMessages()
	m := &c.messages
	c.mu.Lock() // a message may be on its way into a stream
	defer c.mu.Unlock()
	if m.known == nil || m.closed || gpu.Stuck.Load() || c.carrying() {
		return nil
	}
	m.closed = true
	errs := []error{c.withdrawMailbox()}
	needed := c.reclaimAll()
	d := c.device
	errs = append(errs, d.gpu.Do(func() error {
		var errs []error
		for _, lent := range m.lent {
			if lent.at != 0 {
				errs = append(errs, d.gpu.Unmap(lent.at, lent.bytes))
			}
		}
		return errors.Join(errs...)
	}))
	errs = append(errs, m.staging.close(c, needed))
	for i := range m.outlets {
		if box := m.outlets[i].mailbox; box != nil {
			errs = append(errs, box.close(d))
			m.outlets[i].mailbox = nil
		}
	}
	m.mu.Lock()
	own := m.own
	m.own, m.lent = nil, nil
	m.mu.Unlock()
	if own != nil {
		errs = append(errs, own.close(d))
	}
	return errors.Join(errs...)
}
