package nccl

import (
	"context"
	"slices"
	"sync/atomic"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/stream"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
)

// captured is a call in a graph. A message has words, and a Send its place and block, for as long
// as the graph.
type captured struct {
	plan   *plan
	staged outgoing
	// descriptor is a Recv's; state is that of its ends, or nil.
	descriptor *kernels.Message
	state      *gpu.Word
	// last is the end of the latest launch, or nil.
	last *end
}

// recordMessage puts a message into the capture. s.Mu and c.mu are held.
func (c *communicator) recordMessage(s *stream.Stream, p *plan) error {
	k := &captured{plan: p}
	if p.Operation == driver.Send {
		var err error
		if k.staged, err = c.stage(p); roomless(err) {
			return err // before anything has happened
		} else if err != nil {
			return c.breakOff(p, err)
		}
		// Nobody has to take anything before the first launch.
		atomic.StoreUint32(&c.marksTo(p.Root).taken[k.staged.place], 1)
	}
	callsOf(s.Capture).add(k)
	if err := c.device.gpu.Do(func() error { return k.record(s) }); err != nil {
		return c.breakOff(p, err) // half a message is in the capture
	}
	return nil
}

// record puts the work of a message into the capture. It is called on a thread of the device.
func (k *captured) record(s *stream.Stream) (err error) {
	c, on := k.plan.c, s.CUDA
	d := c.device
	api := d.gpu.CUDA
	if k.plan.Operation == driver.Recv {
		if k.descriptor, err = d.descriptors.Take(api); err != nil {
			return err
		}
		k.state = (*gpu.Word)(&k.descriptor.State)
		return c.queueCopy(k.descriptor, k.plan, on)
	}
	if k.state, err = d.gpu.Words.Take(api); err != nil {
		return err
	}
	to := c.messages.outlets[k.plan.Root].mailbox
	word := to.at(&to.marks(c.cfg.Rank).taken[k.staged.place])
	if err = api.StreamWriteValue(on, k.state.Address(), kernels.MessageWaits); err != nil {
		return err
	}
	if err = take(api, word, on); err != nil {
		return err
	}
	if err = api.StreamWriteValue(on, k.state.Address(), 0); err != nil {
		return err
	}
	return c.fill(k.plan, k.staged, on)
}

// launch numbers a message of a launch, and tells the peer of it or waits for it. s.Mu and c.mu are
// held.
func (k *captured) launch(s *stream.Stream) (*end, error) {
	p := k.plan
	c := p.c
	if err := c.mayMessage(s, p); err != nil {
		return nil, err
	}
	if p.Operation == driver.Send {
		if err := c.awaitRoom(p, false); err != nil {
			return nil, err
		}
	}
	e := c.newEnd(p)
	e.state, e.descriptor, e.captured = k.state, k.descriptor, true
	e.before, k.last = k.last, e
	c.noteMessage(s, p)
	if p.Operation == driver.Send {
		marks := c.marksTo(p.Root)
		e.full, e.taken = &marks.full[k.staged.place], &marks.taken[k.staged.place]
		e.released = &c.messages.outlets[p.Root].mailbox.box(c.cfg.Rank).released
		c.tell(e, k.staged, 1)
		return e, nil
	}
	if _, err := c.post(e); err != nil {
		return nil, c.plane.Fail(err)
	}
	return e, nil
}

// releaseGraph takes back what messages of a graph have, all of whose launches have ended.
func (c *communicator) releaseGraph(calls []*captured) {
	own := map[*gpu.Word]bool{}
	for _, k := range calls {
		if k.plan.c == c && k.state != nil {
			own[k.state] = true
		}
	}
	// A call that does not end has the lock: then the graph's words stay for as long as the
	// process.
	ctx, cancel := context.WithTimeout(context.Background(), c.device.cfg.Timeout)
	defer cancel()
	if len(own) == 0 || gpu.Poll(ctx, c.mu.TryLock) != nil {
		return
	}
	defer c.mu.Unlock()
	m := &c.messages
	m.mu.Lock()
	gone := func(e *end) bool { return e.captured && own[e.state] }
	m.sends = slices.DeleteFunc(m.sends, gone)
	m.receives = slices.DeleteFunc(m.receives, gone)
	m.open = slices.DeleteFunc(m.open, gone)
	m.mu.Unlock()
	for _, k := range calls {
		if k.plan.c == c && k.plan.Operation.PointToPoint() {
			k.release()
		}
	}
}

// release takes back what a message has. c.mu is held.
func (k *captured) release() {
	c := k.plan.c
	m := &c.messages
	switch {
	case k.descriptor != nil:
		c.device.descriptors.Put(k.descriptor)
	case k.state != nil:
		c.device.gpu.Words.Put(k.state)
	}
	if k.plan.Operation == driver.Send && !m.closed {
		out := &m.outlets[k.plan.Root]
		out.staged = append(out.staged, k.staged)
		c.reclaim(out, true)
	}
}

// take makes a stream wait until a word is 1, and takes it back to 0.
func take(gpu *cuda.Driver, word uintptr, on cuda.Stream) error {
	if err := gpu.StreamWaitValue(on, word, 1, cuda.WaitEqual); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, word, 0)
}
