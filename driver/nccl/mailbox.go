package nccl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/handoff"
)

// Messages between two ranks of one machine go through mailboxes in the memory of the receiving
// GPU: copies and words, written and awaited in stream order, without NCCL. NCCL's own Send and
// Recv occupy the communicator until the other side comes, so two ranks that first send to each
// other and then receive, each on two streams, would wait for each other for ever.
//
// For each sender a rank has two slots of slotBytes. A message moves in parts, in slot 0 and slot 1
// in turn, beginning with slot 0; a message of no bytes is one part. Two words belong to a slot:
//
//	full    in the receiver's memory: the sender writes the message's tag when the slot is full, the
//	        receiver takes it back to 0 before it empties the slot
//	credit  in the sender's memory: the receiver writes 1 when the slot is empty, the sender takes
//	        it back to 0 before it fills the slot
//
// Whoever waits for a word waits in memory of its own GPU. All values are constants of the message,
// so captured messages can be replayed. With the check on, the tag stands for the digest of the
// call: a receiver that expects another message never empties the slot, and its watcher tells.

const (
	mailboxSlots = 2
	slotBytes    = 1 << 20
	// flagStride keeps words that different GPUs write in lines of their own.
	flagStride = 128
)

// mailbox is one rank's memory for messages, as one of the ranks of the group sees it.
type mailbox struct {
	base  uintptr
	bytes int64
	ranks int
}

// mailboxBytes is the size of a rank's memory: for each rank two flags of each slot, and the slots.
func mailboxBytes(ranks int, granularity int64) int64 {
	bytes := int64(ranks*mailboxSlots*2*flagStride) + int64(ranks*mailboxSlots)*slotBytes
	return (bytes + granularity - 1) / granularity * granularity
}

// full is the word that says that a slot for a sender is full.
func (m *mailbox) full(from, slot int) uintptr {
	return m.base + uintptr((from*mailboxSlots+slot)*2*flagStride)
}

// credit is the word that says that the slot for this rank at a receiver is empty.
func (m *mailbox) credit(to, slot int) uintptr { return m.full(to, slot) + flagStride }

// slot is where a sender's part lies.
func (m *mailbox) slot(from, slot int) uintptr {
	return m.base + uintptr(m.ranks*mailboxSlots*2*flagStride) +
		uintptr(from*mailboxSlots+slot)*slotBytes
}

// mailboxes are those of a group: this rank's own, made when the group connects, and those of its
// peers, mapped at the first message between the two.
type mailboxes struct {
	c      *communicator
	key    handoff.Key
	shared *os.File // the descriptor of this rank's own, as long as peers may fetch it

	mu    sync.Mutex
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
		own, err := m.mapAt(handle, bytes)
		if err != nil {
			return err
		}
		m.boxes[c.cfg.Rank] = own
		if err := m.clear(own); err != nil {
			return err
		}
		fd, err := d.cuda.ExportFD(handle)
		if err != nil {
			return err
		}
		m.shared = os.NewFile(uintptr(fd), "mailbox")
		d.control.Export(m.key, m.shared)
		return nil
	})
}

// mapAt maps a mailbox for this GPU.
func (m *mailboxes) mapAt(handle cuda.Handle, bytes int64) (*mailbox, error) {
	d := m.c.device
	at, err := d.cuda.AddressReserve(bytes, d.info.Granularity)
	if err != nil {
		return nil, err
	}
	if err := d.cuda.Map(at, bytes, 0, handle); err != nil {
		return nil, errors.Join(err, d.cuda.AddressFree(at, bytes))
	}
	box := &mailbox{base: at, bytes: bytes, ranks: len(m.c.cfg.Ranks)}
	if err := d.cuda.SetAccess(at, bytes, d.gpu); err != nil {
		return nil, errors.Join(err, m.unmap(box))
	}
	return box, nil
}

func (m *mailboxes) unmap(box *mailbox) error {
	d := m.c.device
	return errors.Join(d.cuda.Unmap(box.base, box.bytes), d.cuda.AddressFree(box.base, box.bytes))
}

// clear makes every slot empty.
func (m *mailboxes) clear(own *mailbox) error {
	flags := make([]uint32, own.ranks*mailboxSlots*2*flagStride/4)
	for to := range own.ranks {
		for slot := range mailboxSlots {
			flags[(own.credit(to, slot)-own.base)/4] = 1
		}
	}
	d := m.c.device
	return d.aside.copy(d.cuda, own.base, uintptr(unsafe.Pointer(&flags[0])), int64(4*len(flags)))
}

// of returns the mailbox of a rank, which is mapped at the first message with it.
func (m *mailboxes) of(peer int) (*mailbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[peer] != nil {
		return m.boxes[peer], nil
	}
	d := m.c.device
	ctx, cancel := context.WithTimeout(context.Background(), d.cfg.Timeout)
	defer cancel()
	f, err := d.control.Fetch(ctx, m.c.cfg.Ranks[peer], m.key)
	if err != nil {
		return nil, fmt.Errorf("fetching the mailbox of rank %d: %w", m.c.cfg.Ranks[peer], err)
	}
	defer f.Close()
	err = d.do(func() error {
		handle, err := d.cuda.ImportFD(int(f.Fd()))
		if err != nil {
			return err
		}
		defer d.release(handle)
		m.boxes[peer], err = m.mapAt(handle, mailboxBytes(len(m.boxes), d.info.Granularity))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mapping the mailbox of rank %d: %w", m.c.cfg.Ranks[peer], err)
	}
	return m.boxes[peer], nil
}

// withdraw ends the offer of this rank's own mailbox. Peers that have mapped it keep it.
func (m *mailboxes) withdraw() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shared == nil {
		return nil
	}
	m.c.device.control.Withdraw(m.key)
	err := m.shared.Close()
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
			errs = append(errs, m.c.device.do(func() error { return m.unmap(box) }))
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
	me, own, gpu := m.c.cfg.Rank, m.boxes[m.c.cfg.Rank], m.c.device.cuda
	return inParts(p.bytes(), func(slot int, at uintptr, bytes int64) error {
		return errors.Join(
			gpu.StreamWaitValue(on, own.credit(p.Root, slot), 1, cuda.WaitEqual),
			gpu.StreamWriteValue(on, own.credit(p.Root, slot), 0),
			move(gpu, theirs.slot(me, slot), p.send+at, bytes, on),
			gpu.StreamWriteValue(on, theirs.full(me, slot), tag))
	})
}

// receive queues the taking of a message from a rank.
func (m *mailboxes) receive(p *plan, tag uint32, on cuda.Stream) error {
	theirs, err := m.of(p.Root)
	if err != nil {
		return err
	}
	me, own, gpu := m.c.cfg.Rank, m.boxes[m.c.cfg.Rank], m.c.device.cuda
	return inParts(p.bytes(), func(slot int, at uintptr, bytes int64) error {
		return errors.Join(
			gpu.StreamWaitValue(on, own.full(p.Root, slot), tag, cuda.WaitEqual),
			gpu.StreamWriteValue(on, own.full(p.Root, slot), 0),
			move(gpu, p.recv+at, own.slot(p.Root, slot), bytes, on),
			gpu.StreamWriteValue(on, theirs.credit(me, slot), 1))
	})
}

// inParts cuts a message into parts for the slots.
func inParts(bytes int64, part func(slot int, at uintptr, bytes int64) error) error {
	for i, at := 0, int64(0); at < bytes || i == 0; i, at = i+1, at+slotBytes {
		err := part(i%mailboxSlots, uintptr(at), min(slotBytes, bytes-at))
		if err != nil {
			return err
		}
	}
	return nil
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
		_ = d.do(func() error { return d.aside.write(d.cuda, word, value) })
	}
}

func (m *mailboxes) own() *mailbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boxes[m.c.cfg.Rank]
}

// refuseTime bounds how long a stream may take to empty a slot.
const refuseTime = time.Second

// refuse lets a receiver's stream go on without writing to its buffer: the copies are queued, so
// each slot is filled with what its part of the buffer holds already.
func (m *mailboxes) refuse(p *plan, tag uint32) {
	own, d := m.own(), m.c.device
	if own == nil {
		return
	}
	_ = inParts(p.bytes(), func(slot int, at uintptr, bytes int64) error {
		full := own.full(p.Root, slot)
		err := d.do(func() error {
			return errors.Join(
				d.aside.copy(d.cuda, own.slot(p.Root, slot), p.recv+at, bytes),
				d.aside.write(d.cuda, full, tag))
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), refuseTime)
		defer cancel()
		return poll(ctx, func() bool { return m.word(full) == 0 })
	})
}

// word reads a word of this GPU.
func (m *mailboxes) word(at uintptr) uint32 {
	d, value := m.c.device, make([]uint32, 1)
	_ = d.do(func() error {
		return d.aside.copy(d.cuda, uintptr(unsafe.Pointer(&value[0])), at, 4)
	})
	return value[0]
}
