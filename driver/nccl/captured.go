package nccl

import (
	"context"
	"errors"
	"sync/atomic"

	"symmem/driver"
)

// captured is a call in a graph. A message has words, and a Send its place and block, for as long
// as the graph.
type captured struct {
	plan   *plan
	staged outgoing
	// ready and through are those of its ends, or nil.
	ready, through *word
	// last is the end of the latest launch, or nil.
	last *end
}

// recordMessage puts a message into the capture. s.mu and c.mu are held.
func (c *communicator) recordMessage(s *stream, p *plan) error {
	k := &captured{plan: p}
	if p.Operation == driver.Send {
		var err error
		if k.staged, err = c.stage(p); errors.Is(err, driver.ErrOutOfMemory) {
			return err // before anything has happened
		} else if err != nil {
			return c.breakOff(p, err)
		}
		// Nobody has to take anything before the first launch.
		atomic.StoreUint32(&c.marksTo(p.Root).taken[k.staged.place], 1)
	}
	s.capture.add(k)
	if err := c.device.do(func() error { return k.record(s) }); err != nil {
		return c.breakOff(p, err) // half a message is in the capture
	}
	return nil
}

// record puts the work of a message into the capture. It is called on a thread of the device.
func (k *captured) record(s *stream) (err error) {
	c, gpu, on := k.plan.c, s.device.cuda, s.handle
	if k.ready, err = s.device.words.take(gpu); err != nil {
		return err
	}
	if k.plan.Operation == driver.Recv {
		if k.through, err = s.device.words.take(gpu); err != nil {
			return err
		}
		if err = gpu.StreamWriteValue(on, k.ready.address(), 1); err != nil {
			return err
		}
		return take(gpu, k.through.address(), on)
	}
	to := c.messages.outlets[k.plan.Root].mailbox
	word := to.at(&to.marks(c.cfg.Rank).taken[k.staged.place])
	if err = c.takeShown(k.ready, word, on); err != nil {
		return err
	}
	return c.fill(k.plan, k.staged, on)
}

// launch numbers a message of a launch, and tells the peer of it or waits for it. s.mu and c.mu are
// held.
func (k *captured) launch(s *stream) (*end, error) {
	p := k.plan
	c := p.c
	if err := c.mayMessage(p); err != nil {
		return nil, err
	}
	if p.Operation == driver.Send {
		if err := c.awaitRoom(p, false); err != nil {
			return nil, err
		}
	}
	e := c.newEnd(p)
	e.ready, e.through, e.captured = k.ready, k.through, true
	c.noteMessage(s, p)
	if p.Operation == driver.Send {
		e.taken = &c.marksTo(p.Root).taken[k.staged.place]
		c.tell(e, k.staged, 1)
		return e, nil
	}
	e.before, k.last = k.last, e
	if err := c.post(e, false); err != nil {
		return nil, c.plane.Fail(err)
	}
	return e, nil
}

// release takes back what a message of a graph has, which is closed; ended tells that its launches
// have.
func (k *captured) release(ended bool) {
	c := k.plan.c
	m := &c.messages
	// A call that does not end has the lock: then the graph's words stay for as long as the process.
	ctx, cancel := context.WithTimeout(context.Background(), c.device.cfg.Timeout)
	defer cancel()
	if !ended || poll(ctx, c.mu.TryLock) != nil {
		return
	}
	defer c.mu.Unlock()
	m.mu.Lock()
	m.forget(func(e *end) bool { return e.captured && e.ready == k.ready })
	for _, w := range []*word{k.ready, k.through} {
		if w != nil {
			c.device.words.put(w)
		}
	}
	m.mu.Unlock()
	if k.plan.Operation == driver.Send && !m.closed {
		out := &m.outlets[k.plan.Root]
		out.staged = append(out.staged, k.staged)
		c.reclaim(out, true)
	}
}
