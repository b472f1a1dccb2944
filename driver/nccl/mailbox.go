package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
)

// Messages between two ranks of one machine go through mailboxes in the memory of the receiving
// GPU: copies and words, written and awaited in stream order, without NCCL. NCCL's own Send and
// Recv occupy the communicator until the other side comes, so two ranks that first send to each
// other and then receive, each on two streams, would wait for each other for ever.
//
// For each sender a rank has two slots of slotBytes. A message moves in parts, in slot 0 and slot 1
// in turn, beginning with slot 0; a message of no bytes is one part. Three words belong to a slot:
//
//	full    in the receiver's memory: the sender writes the message's tag when the slot is full, the
//	        receiver takes it back to 0 before it empties the slot
//	credit  in the sender's memory: the receiver writes 1 when the slot is empty, the sender takes
//	        it back to 0 before it fills the slot
//	ready   in the receiver's memory: 1 while its stream waits for the slot
//
// Whoever waits for a word waits in memory of its own GPU. All values are constants of the message,
// so captured messages can be replayed. With the check on, the tag stands for the digest of the
// call: a receiver that expects another message never empties the slot, and its watcher tells.

const (
	mailboxSlots = 2
	slotBytes    = 1 << 20
	// flagStride keeps words that different GPUs write in lines of their own.
	flagStride = 128
	// flagBytes is what the words of a sender take.
	flagBytes = mailboxSlots * 3 * flagStride
)

// mailbox is one rank's memory for messages, as one of the ranks of the group sees it.
type mailbox struct {
	base  uintptr
	bytes int64
	ranks int
}

// mailboxBytes is the size of a rank's memory: for each rank the words of its slots, and the slots.
func mailboxBytes(ranks int, granularity int64) int64 {
	bytes := int64(ranks) * (flagBytes + mailboxSlots*slotBytes)
	return (bytes + granularity - 1) / granularity * granularity
}

// full is the word that says that a slot for a sender is full.
func (m *mailbox) full(from, slot int) uintptr {
	return m.base + uintptr(from*flagBytes+slot*3*flagStride)
}

// credit is the word that says that the slot for this rank at a receiver is empty.
func (m *mailbox) credit(to, slot int) uintptr { return m.full(to, slot) + flagStride }

// ready is the word that says that the stream of a receiver waits for a slot.
func (m *mailbox) ready(from, slot int) uintptr { return m.full(from, slot) + 2*flagStride }

// slot is where a sender's part lies.
func (m *mailbox) slot(from, slot int) uintptr {
	return m.base + uintptr(m.ranks*flagBytes) +
		uintptr(from*mailboxSlots+slot)*slotBytes
}

// mailboxes are those of a group: this rank's own, made when the group connects, and those of its
// peers, mapped at the first message between the two.
type mailboxes struct {
	c      *communicator
	key    handoff.Key
	shared *os.File // the descriptor of this rank's own, as long as peers may fetch it

	mu    ranked.Mutex[mailboxesMu]
	boxes []*mailbox // by group rank; guarded by mu
}

// open makes this rank's mailbox and offers it to the others.
func (m *mailboxes) open(c *communicator) error {
	m.c, m.boxes = c, make([]*mailbox, len(c.cfg.Ranks))
	m.key = handoff.Key{Space: handoff.Space("mailbox/" + c.cfg.ID)}
	d := c.device
	return d.do(func() error {
		bytes := mailboxBytes(len(c.cfg.Ranks), d.info.Granularity)
		handle, err := d.cuda.Create(bytes, cuda.PinnedMemory(d.gpu, cuda.HandlePosixFD, false))
		if err != nil {
			return err
		}
		defer d.release(handle)
		at, err := d.mapShared(handle, bytes)
		if err != nil {
			return err
		}
		own := &mailbox{base: at, bytes: bytes, ranks: len(c.cfg.Ranks)}
		m.boxes[c.cfg.Rank] = own
		if err := m.clear(own); err != nil {
			return err
		}
		m.shared, err = d.offer(m.key, handle)
		return err
	})
}

// clear makes every slot empty.
func (m *mailboxes) clear(own *mailbox) error {
	flags := make([]uint32, own.ranks*flagBytes/4)
	for to := range own.ranks {
		for slot := range mailboxSlots {
			flags[(own.credit(to, slot)-own.base)/4] = 1
		}
	}
	d := m.c.device
	err := d.aside.copy(d, own.base, dl.AddressOf(&flags[0]), int64(4*len(flags)))
	runtime.KeepAlive(flags)
	return err
}

// of returns the mailbox of a rank, which is mapped at the first message with it. c.mu is held: the
// answer of the rank is waited for without m.mu, which the end of the communicator needs.
func (m *mailboxes) of(peer int) (*mailbox, error) {
	if box := m.known(peer); box != nil {
		return box, nil
	}
	d, rank := m.c.device, m.c.cfg.Ranks[peer]
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.Timeout)
	defer cancel()
	bytes := mailboxBytes(len(m.c.cfg.Ranks), d.info.Granularity)
	at, err := d.fetch(ctx, rank, m.key, bytes)
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of a peer: %w", err)
	}
	box := &mailbox{base: at, bytes: bytes, ranks: len(m.c.cfg.Ranks)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[peer] = box
	return box, nil
}

// known returns the mailbox of a rank if it is mapped, or nil.
func (m *mailboxes) known(rank int) *mailbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[rank]
}

// own is this rank's mailbox.
func (m *mailboxes) own() *mailbox { return m.known(m.c.cfg.Rank) }

// withdraw ends the offer of this rank's own mailbox. Peers that have mapped it keep it.
func (m *mailboxes) withdraw() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shared == nil {
		return nil
	}
	err := m.c.device.withdraw(m.key, m.shared)
	m.shared = nil
	return err
}

// close gives everything back.
func (m *mailboxes) close() error {
	errs := []error{m.withdraw()}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, box := range m.boxes {
		if box != nil && !stuck.Load() {
			errs = append(errs, m.c.device.do(func() error {
				return m.c.device.unmapShared(box.base, box.bytes)
			}))
			m.boxes[i] = nil
		}
	}
	return errors.Join(errs...)
}

// send queues a message to a rank.
func (m *mailboxes) send(p *plan, tag uint32, on cuda.Stream) error {
	theirs, err := m.of(p.Root)
	if err != nil {
		return err
	}
	me, own, gpu := m.c.cfg.Rank, m.own(), m.c.device.cuda
	return inParts(p.bytes(), func(slot int, at uintptr, bytes int64) error {
		err := take(gpu, own.credit(p.Root, slot), 1, on)
		if err == nil {
			err = move(gpu, theirs.slot(me, slot), p.send+at, bytes, on)
		}
		if err == nil {
			err = gpu.StreamWriteValue(on, theirs.full(me, slot), tag)
		}
		return err
	})
}

// receive queues the taking of a message from a rank.
func (m *mailboxes) receive(p *plan, tag uint32, on cuda.Stream) error {
	theirs, err := m.of(p.Root)
	if err != nil {
		return err
	}
	me, own, gpu := m.c.cfg.Rank, m.own(), m.c.device.cuda
	return inParts(p.bytes(), func(slot int, at uintptr, bytes int64) error {
		err := await(gpu, own, p.Root, slot, tag, on)
		if err == nil {
			err = move(gpu, p.recv+at, own.slot(p.Root, slot), bytes, on)
		}
		if err == nil {
			err = gpu.StreamWriteValue(on, theirs.credit(me, slot), 1)
		}
		return err
	})
}

// await makes a stream wait until a slot is full. The host can see that it waits.
func await(gpu *cuda.Driver, own *mailbox, from, slot int, tag uint32, on cuda.Stream) error {
	full, ready := own.full(from, slot), own.ready(from, slot)
	err := gpu.StreamWriteValue(on, ready, 1)
	if err == nil {
		err = take(gpu, full, tag, on)
	}
	if err == nil {
		err = gpu.StreamWriteValue(on, ready, 0)
	}
	return err
}

// take makes a stream wait until a word has a value, and takes it back to 0.
func take(gpu *cuda.Driver, word uintptr, value uint32, on cuda.Stream) error {
	if err := gpu.StreamWaitValue(on, word, value, cuda.WaitEqual); err != nil {
		return err
	}
	return gpu.StreamWriteValue(on, word, 0)
}

// inParts cuts a message into parts for the slots.
func inParts(bytes int64, do func(slot int, at uintptr, bytes int64) error) error {
	for i := 0; ; i++ {
		slot, at, part, ok := partOf(bytes, i)
		if !ok {
			return nil
		}
		if err := do(slot, at, part); err != nil {
			return err
		}
	}
}

// partOf returns part i of a message, if it has so many.
func partOf(bytes int64, i int) (slot int, at uintptr, part int64, ok bool) {
	begin := int64(i) * slotBytes
	return i % mailboxSlots, uintptr(begin), min(slotBytes, bytes-begin), i == 0 || begin < bytes
}

func move(gpu *cuda.Driver, dst, src uintptr, bytes int64, on cuda.Stream) error {
	if bytes == 0 {
		return nil
	}
	return gpu.MemcpyAsync(dst, src, bytes, on)
}

// release ends what streams of this GPU wait for in a message, by writing it. The group has failed,
// so nobody trusts what is copied then. What does not work now is tried again.
func (m *mailboxes) release(p *plan, tag uint32) {
	own, d := m.own(), m.c.device
	if own == nil {
		return
	}
	for slot := range mailboxSlots {
		word, value := own.credit(p.Root, slot), uint32(1)
		if p.Operation == driver.Recv {
			word, value = own.full(p.Root, slot), tag
		}
		_ = d.do(func() error { return d.aside.write(d, word, value) })
	}
}

// patience is how long a slot is left to a sender that has yet to fill it.
const patience = time.Second / 2

// refuse lets a receiver's stream go on behind a part without a change of its buffer: the copy is
// queued, so the slot is filled with what that part of the buffer holds already. It can be done,
// and is, when the stream waits for the slot and the sender, which has another message, has filled
// it or differs for longer than patience.
func (m *mailboxes) refuse(p *plan, tag uint32, i int, differs time.Duration) (done bool) {
	own, d := m.own(), m.c.device
	slot, at, bytes, ok := partOf(p.bytes(), i)
	if own == nil || !ok {
		return false
	}
	full := own.full(p.Root, slot)
	if m.word(own.ready(p.Root, slot)) == 0 || m.word(full) == 0 && differs < patience {
		return false
	}
	return nil == d.do(func() error {
		err := d.aside.copy(d, own.slot(p.Root, slot), p.recv+at, bytes)
		if err != nil {
			return err
		}
		return d.aside.write(d, full, tag)
	})
}

// word reads a word of this GPU, or returns 0 if that cannot be done.
func (m *mailboxes) word(at uintptr) (value uint32) {
	d := m.c.device
	_ = d.do(func() (err error) {
		value, err = d.aside.read(d, at)
		return err
	})
	return value
}
