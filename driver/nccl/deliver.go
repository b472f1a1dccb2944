package nccl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
	"symmem/internal/sys"
)

// lentMemory is a segment of a peer's staging.
type lentMemory struct {
	at     uintptr // where it is mapped, or 0 as long as it is not
	bytes  int64
	failed error
}

// deliver has a goroutine deliver messages as long as receives wait. m.mu is held.
func (c *communicator) deliver() {
	m := &c.messages
	if m.running || m.stopped || len(m.open) == 0 {
		return
	}
	m.running = true
	m.delivering.Go(c.deliverAll)
}

// deliverAll delivers until no Recv waits, or the group has ended.
func (c *communicator) deliverAll() {
	ranked.Waiting()
	b := c.messages.own.bell()
	for turn := 0; ; turn++ {
		rung := atomic.LoadUint32(&b.word)
		ready, told, more, err := c.deliverable()
		for _, e := range ready {
			if err == nil {
				err = c.carry(e)
			}
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
	// spins is how many looks a goroutine takes in a row, and yieldsOf how many more between which it
	// lets others run.
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
			slice = nap
		}
		atomic.AddInt32(&b.sleeping, 1)
		sys.FutexWait(&b.word, rung, slice)
		atomic.AddInt32(&b.sleeping, -1)
	}
}

// deliverable takes the receives that can be copied off the list of those that are open. It reports
// whether the others include some whose message was told of, or whose stream has yet to come, and
// whether there are others.
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
		can, why := c.deliversNow(e)
		if err == nil {
			err = why
		}
		if !can || err != nil {
			told = told || e.letter != nil
			rest = append(rest, e)
			continue
		}
		e.ready.set(0)
		atomic.StoreUint32(&m.own.marks(e.source).full[e.letter.place], 0)
		e.handled, e.letter.handled = true, true
		ready = append(ready, e)
	}
	clear(m.open[len(rest):])
	m.open = rest
	told = told || m.anywhere > 0 && len(m.told) > 0
	m.running = len(rest) > 0 || len(ready) > 0
	return ready, told, m.running, err
}

// deliversNow reports whether a message is there, its stream waits for it, and no other one has to
// be copied before. m.mu is held.
func (c *communicator) deliversNow(e *end) (can bool, err error) {
	l := e.letter
	if l == nil || e.ready == nil || e.ready.value() != 1 ||
		e.before != nil && !e.before.handled || !l.next() ||
		atomic.LoadUint32(&c.messages.own.marks(l.source).full[l.place]) != 1 {
		return false, nil
	}
	e.before, l.before = nil, nil
	if l.bytes == 0 {
		return true, nil
	}
	at := spot{l.source, l.segment}
	lent := c.messages.lent[at]
	if lent == nil {
		lent = &lentMemory{bytes: int64(l.size)}
		c.messages.lent[at] = lent
		c.messages.delivering.Go(func() { c.borrowStaging(at, lent) })
	}
	return lent.at != 0, lent.failed
}

// borrowStaging maps a segment of a peer's.
func (c *communicator) borrowStaging(at spot, lent *lentMemory) {
	d, rank := c.device, c.cfg.Ranks[at.source]
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.Timeout)
	defer cancel()
	go func() {
		select {
		case <-c.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	address, err := d.fetch(ctx, rank, stagingKey(c.cfg.ID, int(at.number)), lent.bytes)
	if err != nil && c.messages.known.Lost(at.source) {
		err = &driver.RankLostError{
			Ranks: []int{rank}, Doing: "fetching a message in group " + c.cfg.Name(),
			Members: c.cfg.Ranks,
		}
	}
	if err != nil {
		err = fmt.Errorf("fetching a message of rank %d of the world: %w", rank, err)
	}
	c.messages.mu.Lock()
	lent.at, lent.failed = address, err
	c.messages.mu.Unlock()
	c.messages.own.bell().ring()
}

// carry has a message copied to its Recv's buffer, and lets the stream go on behind that. What it
// queues waits for nothing.
func (c *communicator) carry(e *end) error {
	if arrived := e.plan.Arrived; arrived != nil {
		arrived(e.source)
	}
	on := c.messages.carriers[e.source%len(c.messages.carriers)]
	err := c.device.do(func() (err error) {
		if err = c.fetch(e, on); err != nil {
			return err
		}
		return c.device.cuda.StreamWriteValue(on, e.through.address(), 1)
	})
	if err != nil {
		c.messages.mu.Lock()
		e.handled = false // so that its stream is released
		c.messages.mu.Unlock()
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
	m.mu.Unlock()
	m.own.bell().ring()
	m.delivering.Wait()
}

// carried waits until the streams on which messages are delivered have done their work.
func (c *communicator) carried() error {
	for _, on := range c.messages.carriers {
		if on == 0 {
			continue
		}
		err := c.device.within(endingTime, func() (done bool, err error) {
			err = c.device.with(func(gpu *cuda.Driver) error {
				done, err = gpu.StreamQuery(on)
				return err
			})
			return done, err
		})
		if err != nil {
			return fmt.Errorf("waiting for messages that are being copied: %w", err)
		}
	}
	return nil
}

// withdrawMailbox ends the offer of this rank's mailbox. Peers that have mapped it keep it.
func (c *communicator) withdrawMailbox() error {
	m := &c.messages
	if m.file == nil {
		return nil
	}
	err := c.device.withdraw(mailboxKey(c.cfg.ID), m.file)
	m.file = nil
	return err
}

// closeMessages gives everything back, unless a stream has yet to come past a message: then it
// stays for as long as the process.
func (c *communicator) closeMessages() error {
	c.stopMessages()
	m := &c.messages
	c.mu.Lock() // a message may be on its way into a stream
	defer c.mu.Unlock()
	if m.known == nil || m.closed || stuck.Load() || c.carrying() {
		return nil
	}
	if err := c.carried(); err != nil {
		return err
	}
	m.closed = true
	errs := []error{c.withdrawMailbox()}
	needed := c.reclaimAll()
	d := c.device
	errs = append(errs, d.do(func() error {
		var errs []error
		for _, on := range m.carriers {
			if on != 0 {
				errs = append(errs, d.cuda.StreamDestroy(on))
			}
		}
		for _, lent := range m.lent {
			if lent.at != 0 {
				errs = append(errs, d.unmapShared(lent.at, lent.bytes))
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
