package p2p

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"symmem/internal/handoff"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A mailbox is memory of the host in which a rank gets the headers of messages. The ranks of its
// group write to it, and so do their GPUs: a GPU that has put a message into the memory of its
// sender, and one that has copied it from there, say so in words of the mailbox. So processors see
// how far a message is without asking a GPU, and end the waits of streams by a store.
//
// The messages themselves stay in device memory: see staging.

const (
	// Slots is how many messages of a pair may be under way, a power of two.
	Slots = 1024
	// ringPage keeps what different ranks write apart, and begins what GPUs write to.
	ringPage = 4096
)

// header describes a message.
type header struct {
	tag, number, bytes uint64
	// digest is that of the sender's call, after how many collectives it had called before.
	digest, after uint64
	// segment is the number of the segment of the sender's in which the message lies, from 1, size
	// the size of that and offset where; segment is 0 for a message without bytes.
	segment, size, offset uint64
	// slot is which words belong to the message; replayed is 1 if a graph uses them again and again.
	slot, replayed uint64
}

// flags are the words of the messages of a pair, which GPUs write and wait for: full is 1 when the
// message of a slot is there, until the receiver comes for it, and taken is 1 once it has been
// copied, until the sender uses the slot again.
type flags struct{ full, taken [Slots]uint32 }

// headerRing is where one rank writes the headers of its messages for the owner of the mailbox.
type headerRing struct {
	posted uint64 // headers so far; the sender's
	// released is 1 once the sender lets replays go on whose messages before were not taken: they
	// write over these. Nothing that a graph sends can be taken then.
	released uint32
	_        [ringPage - 12]byte
	read     uint64 // the number of them that the receiver has read
	_        [ringPage - 8]byte
	// headers holds the n-th, from 1, at n % Places.
	headers [Slots]header
}

// wakeup is how the rank of a mailbox is woken.
type wakeup struct {
	word     uint32
	sleeping int32
	// closed is 1 once the rank reads no more headers.
	closed uint32
	_      [ringPage - 12]byte
}

// mailbox is one as a rank has it mapped.
type mailbox struct {
	memory *sys.Mapping
	ranks  int
	// pinned is the part that the GPU has been given, and device where the GPU finds it.
	pinned, device uintptr
}

func mailboxBytes(ranks int) int64 {
	return int64(unsafe.Sizeof(wakeup{})) +
		int64(ranks)*int64(unsafe.Sizeof(flags{})+unsafe.Sizeof(headerRing{}))
}

func (m *mailbox) wakeup() *wakeup { return (*wakeup)(m.memory.Base()) }

// flags are the words of the messages of a rank.
func (m *mailbox) flags(from int) *flags {
	at := unsafe.Sizeof(wakeup{}) + uintptr(from)*unsafe.Sizeof(flags{})
	return (*flags)(unsafe.Add(m.memory.Base(), at))
}

// ring is the ring of headers of a rank.
func (m *mailbox) ring(from int) *headerRing {
	at := unsafe.Sizeof(wakeup{}) + uintptr(m.ranks)*unsafe.Sizeof(flags{}) +
		uintptr(from)*unsafe.Sizeof(headerRing{})
	return (*headerRing)(unsafe.Add(m.memory.Base(), at))
}

// at is where the GPU finds a word that it has been given.
func (m *mailbox) at(word *uint32) uintptr {
	return m.device + uintptr(unsafe.Pointer(word)) - m.pinned
}

// wake wakes the rank of the mailbox.
func (b *wakeup) wake() {
	atomic.AddUint32(&b.word, 1)
	if atomic.LoadInt32(&b.sleeping) != 0 {
		sys.FutexWake(&b.word)
	}
}

// post writes a header. There is room for it.
func (b *headerRing) post(h *header) {
	next := spin.LoadAcquire64(&b.posted) + 1
	b.headers[next%Slots] = *h
	spin.StoreRelease64(&b.posted, next)
}

// room reports whether there is room for a header.
func (b *headerRing) room() bool {
	return spin.LoadAcquire64(&b.posted)-spin.LoadAcquire64(&b.read) < Slots
}

// pin gives the words of some senders to the GPU. It is called on a thread of the device.
func (m *mailbox) pin(d *Device, first, ranks int) error {
	at := uintptr(unsafe.Pointer(m.flags(first)))
	err := d.GPU.CUDA.MemHostRegister(at, int64(ranks)*int64(unsafe.Sizeof(flags{})))
	if err != nil {
		return fmt.Errorf("giving the GPU memory of the host for messages: %w", err)
	}
	m.pinned = at
	m.device, err = d.GPU.CUDA.MemHostDevice(at)
	return err
}

// close gives the mailbox back. No GPU writes to it any more from here.
func (m *mailbox) close(d *Device) error {
	var errs []error
	if m.pinned != 0 {
		errs = append(errs, d.GPU.Do(func() error { return d.GPU.CUDA.MemHostUnregister(m.pinned) }))
	}
	return errors.Join(append(errs, m.memory.Close())...)
}

func mailboxKey(group string) handoff.Key {
	return handoff.Key{Space: handoff.Space("mailbox/" + group)}
}

// openMailbox makes this rank's own mailbox and offers it to the others, as long as the file is not
// withdrawn.
func (g *Group) openMailbox() (*mailbox, *os.File, error) {
	ranks := len(g.Config.Ranks)
	bytes := mailboxBytes(ranks)
	f, err := sys.Memfd("symmem-mailbox", bytes)
	if err != nil {
		return nil, nil, err
	}
	if err = sys.SealSize(f); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	memory, err := sys.Map(f, 0, bytes)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	m := &mailbox{memory: memory, ranks: ranks}
	if err := g.Device.GPU.Do(func() error { return m.pin(g.Device, 0, ranks) }); err != nil {
		return nil, nil, errors.Join(err, m.close(g.Device), f.Close())
	}
	g.Device.Exporter.Machine.Export(mailboxKey(g.Config.ID), f)
	return m, f, nil
}

// fetchMailbox maps the mailbox of a peer.
func (g *Group) fetchMailbox(ctx context.Context, rank int) (*mailbox, error) {
	d := g.Device
	f, err := d.Exporter.Machine.Fetch(ctx, rank, mailboxKey(g.Config.ID))
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of rank %d of the world: %w", rank, err)
	}
	defer f.Close()
	bytes := mailboxBytes(len(g.Config.Ranks))
	if size, err := sys.FileSize(f); err != nil || size < bytes {
		return nil, fmt.Errorf("the mailbox of rank %d of the world has %d of %d bytes: %w", rank, size,
			bytes, err)
	}
	memory, err := sys.Map(f, 0, bytes)
	if err != nil {
		return nil, err
	}
	m := &mailbox{memory: memory, ranks: len(g.Config.Ranks)}
	if err := d.GPU.Do(func() error { return m.pin(d, g.Config.Rank, 1) }); err != nil {
		return nil, errors.Join(err, m.close(d))
	}
	return m, nil
}
