package p2p

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// A mailbox is host memory in which a rank receives the headers of messages. It is shared by the
// ranks of its group and their GPUs: the sender's GPU writes a word when the data of a message is
// complete, and the receiver's GPU writes another one when it has copied the data. So the host sees
// the progress of a message without a call to CUDA, and can end the wait of a stream by a store.
//
// The data of messages stays in device memory: see staging.

const (
	// Slots is the number of unfinished messages that a pair of ranks may have, a power of two.
	Slots = 1024
	// ringPage separates data that different ranks write, and aligns the words that GPUs write.
	ringPage = 4096
)

// header describes a message.
type header struct {
	tag, number, bytes uint64
	// digest is the digest of the sender's call; after counts the collectives it had called before.
	digest, after uint64
	// segment is the number, from 1, of the sender's segment that holds the message; size is the size
	// of that segment. segment is 0 for a message without bytes.
	segment, size, offset uint64
	// slot selects the flags of the message; replayed is 1 if a graph uses them again at each launch.
	slot, replayed uint64
}

// flags holds the words of the messages of a pair, which GPUs write and wait for. full is 1 from
// the arrival of a message until the receiver claims it; taken is 1 from the end of the copy until
// the sender reuses the slot.
type flags struct{ full, taken [Slots]uint32 }

// headerRing holds the headers that one rank writes for the owner of the mailbox.
type headerRing struct {
	posted uint64 // number of headers written; written by the sender
	// released is 1 once the sender lets replays overwrite messages that were not taken. From then on
	// the receiver takes no message of a graph.
	released uint32
	_        [ringPage - 12]byte
	read     uint64 // number of headers read; written by the receiver
	_        [ringPage - 8]byte
	// headers holds header n, from 1, at n % Slots.
	headers [Slots]header
}

// wakeup wakes the owner of a mailbox through a futex.
type wakeup struct {
	word     uint32
	sleeping int32
	// closed is 1 once the owner reads no more headers.
	closed uint32
	_      [ringPage - 12]byte
}

// mailbox accesses a mailbox that is mapped in this process.
type mailbox struct {
	memory *sys.Mapping
	ranks  int
	// pinned is the host address of the part registered with CUDA, and device its device address.
	pinned, device uintptr
}

func mailboxBytes(ranks int) int64 {
	return int64(unsafe.Sizeof(wakeup{})) +
		int64(ranks)*int64(unsafe.Sizeof(flags{})+unsafe.Sizeof(headerRing{}))
}

func (m *mailbox) wakeup() *wakeup { return (*wakeup)(m.memory.Base()) }

// flags returns the flags of the messages from a rank.
func (m *mailbox) flags(from int) *flags {
	at := unsafe.Sizeof(wakeup{}) + uintptr(from)*unsafe.Sizeof(flags{})
	return (*flags)(unsafe.Add(m.memory.Base(), at))
}

// ring returns the ring of headers from a rank.
func (m *mailbox) ring(from int) *headerRing {
	at := unsafe.Sizeof(wakeup{}) + uintptr(m.ranks)*unsafe.Sizeof(flags{}) +
		uintptr(from)*unsafe.Sizeof(headerRing{})
	return (*headerRing)(unsafe.Add(m.memory.Base(), at))
}

// at returns the device address of a word in the pinned part.
func (m *mailbox) at(word *uint32) uintptr {
	return m.device + uintptr(unsafe.Pointer(word)) - m.pinned
}

// wake wakes the owner of the mailbox.
func (b *wakeup) wake() {
	atomic.AddUint32(&b.word, 1)
	if atomic.LoadInt32(&b.sleeping) != 0 {
		sys.FutexWake(&b.word)
	}
}

// post writes a header. The caller has checked that there is room.
func (b *headerRing) post(h *header) {
	next := spin.LoadAcquire64(&b.posted) + 1
	b.headers[next%Slots] = *h
	spin.StoreRelease64(&b.posted, next)
}

// room reports whether there is room for a header.
func (b *headerRing) room() bool {
	return spin.LoadAcquire64(&b.posted)-spin.LoadAcquire64(&b.read) < Slots
}

// pin registers the flags of some senders with CUDA. It must be called on a thread of the context.
func (m *mailbox) pin(d *Device, first, ranks int) error {
	at := uintptr(unsafe.Pointer(m.flags(first)))
	err := d.GPU.CUDA.MemHostRegister(at, int64(ranks)*int64(unsafe.Sizeof(flags{})))
	if err != nil {
		return fmt.Errorf("registering host memory for messages: %w", err)
	}
	m.pinned = at
	m.device, err = d.GPU.CUDA.MemHostDevice(at)
	return err
}

// close unmaps the mailbox. No work of this process uses it any more.
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

// openMailbox creates this rank's own mailbox and exports it to the peers until the file is
// withdrawn.
func openMailbox(d *Device, config *driver.GroupConfig) (*mailbox, *os.File, error) {
	ranks := len(config.Ranks)
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
	if err := d.GPU.Do(func() error { return m.pin(d, 0, ranks) }); err != nil {
		return nil, nil, errors.Join(err, m.close(d), f.Close())
	}
	d.Exporter.Machine.Export(mailboxKey(config.ID), f)
	return m, f, nil
}

// fetchMailbox maps the mailbox of a peer.
func fetchMailbox(
	ctx context.Context, d *Device, config *driver.GroupConfig, rank int,
) (*mailbox, error) {
	f, err := d.Exporter.Machine.Fetch(ctx, rank, mailboxKey(config.ID))
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of rank %d of the world: %w", rank, err)
	}
	defer f.Close()
	bytes := mailboxBytes(len(config.Ranks))
	size, err := sys.FileSize(f)
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of rank %d of the world: %w", rank, err)
	}
	if size < bytes {
		return nil, fmt.Errorf("the mailbox of rank %d of the world has %d of %d bytes", rank, size,
			bytes)
	}
	memory, err := sys.Map(f, 0, bytes)
	if err != nil {
		return nil, err
	}
	m := &mailbox{memory: memory, ranks: len(config.Ranks)}
	if err := d.GPU.Do(func() error { return m.pin(d, config.Rank, 1) }); err != nil {
		return nil, errors.Join(err, m.close(d))
	}
	return m, nil
}
