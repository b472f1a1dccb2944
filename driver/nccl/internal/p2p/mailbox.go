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

// Each rank has a mailbox: host memory that it shares with the other ranks of its group. For
// example, rank 0 sends 64 bytes to rank 1:
//
//  1. Rank 0 picks a slot, the number of two flags in rank 1's mailbox, say 5. It writes a header
//     into the mailbox, and wakes rank 1. The header describes the message: its size, its slot, and
//     where its data will be on rank 0's GPU.
//  2. Rank 0's GPU copies the data to that place, and sets the flag arrived[5] in the mailbox to 1.
//     This can happen before or after step 1.
//  3. Rank 1 reads the header, sees that arrived[5] is 1, and sets it to 0. This claims the
//     message: from now on, rank 0 cannot withdraw it.
//  4. Rank 1's GPU copies the data, and sets the flag copied[5] to 1. Rank 0 sets it to 0 when it
//     uses slot 5 again.
//
// A mailbox consists of a wakeup, then flags for each sender, and then a headerRing for each. Each
// of these parts begins at a page of memory.

// Slots is the number of slots for messages from one rank to another.
const Slots = 1024

// pageBytes is the size of a page in bytes.
const pageBytes = 4096

// wakeup is the part of a mailbox with which senders wake its owner.
type wakeup struct {
	wakeCount    uint32 // number of calls of wake; the owner sleeps until it changes
	sleeperCount int32  // number of the owner's goroutines that sleep
	closed       uint32 // 1 once the owner does not read headers any more
	_            [pageBytes - 12]byte
}

// flags holds two flags for each slot. Each array fills one page.
type flags struct {
	arrived [Slots]uint32 // 1 from the arrival of the data until the receiver claims the message
	copied  [Slots]uint32 // 1 from the end of the receiver's copy until the sender reuses the slot
}

// headerRing is a ring buffer of headers. The counts never decrease.
type headerRing struct {
	postedCount uint64 // headers that the sender has written
	// canOverwrite is 1 once the receiver must not claim messages of CUDA graphs any more. The sender
	// sets it after a failure, before its GPU might overwrite such a message.
	canOverwrite uint32
	_            [pageBytes - 12]byte
	readCount    uint64 // headers that the receiver has read
	_            [pageBytes - 8]byte
	headers      [Slots]header // the first header is at index 1, and number n at index n % Slots
}

// header describes a message. The data is in a segment, which is an allocation on the sender's GPU.
type header struct {
	tag               uint64
	number            uint64 // among the sender's messages to this rank with this tag, from 1
	bytes             uint64 // size of the message
	digest            uint64 // hash of the sender's call; must match the receiver's
	collectivesBefore uint64 // number of collectives that the sender called before
	segment           uint64 // number of the segment, from 1, or 0 for an empty message
	size              uint64 // size of the segment in bytes
	offset            uint64 // offset of the data in the segment in bytes
	slot              uint64
	inGraph           uint64 // 1 for a Send in a CUDA graph, which always uses the same slot, or 0
}

// mailbox is a mailbox of this rank or of a peer, mapped into this process.
type mailbox struct {
	memory *sys.Mapping
	ranks  int // size of the group

	// This rank's GPU can access the flags that pin has registered. They begin at two addresses: one
	// for this process, and one for the GPU. Both are 0 before pin.
	pinnedHost   uintptr
	pinnedDevice uintptr
}

// mailboxBytes returns the size of a mailbox.
func mailboxBytes(ranks int) int64 {
	perSender := int64(unsafe.Sizeof(flags{}) + unsafe.Sizeof(headerRing{}))
	return int64(unsafe.Sizeof(wakeup{})) + int64(ranks)*perSender
}

func (m *mailbox) wakeup() *wakeup { return (*wakeup)(m.memory.Base()) }

// flags returns the flags of messages from a group rank.
func (m *mailbox) flags(sender int) *flags {
	offset := unsafe.Sizeof(wakeup{}) + uintptr(sender)*unsafe.Sizeof(flags{})
	return (*flags)(unsafe.Add(m.memory.Base(), offset))
}

// headersFrom returns the headers of messages from a group rank.
func (m *mailbox) headersFrom(sender int) *headerRing {
	ringsOffset := unsafe.Sizeof(wakeup{}) + uintptr(m.ranks)*unsafe.Sizeof(flags{})
	offset := ringsOffset + uintptr(sender)*unsafe.Sizeof(headerRing{})
	return (*headerRing)(unsafe.Add(m.memory.Base(), offset))
}

// hasRoom reports whether the ring has room for another header.
func (r *headerRing) hasRoom() bool {
	unreadCount := spin.LoadAcquire64(&r.postedCount) - spin.LoadAcquire64(&r.readCount)
	return unreadCount < Slots
}

// post adds a header. Call it only if hasRoom returns true.
func (r *headerRing) post(h *header) {
	next := spin.LoadAcquire64(&r.postedCount) + 1
	r.headers[next%Slots] = *h
	spin.StoreRelease64(&r.postedCount, next)
}

// wake wakes the owner's goroutines that sleep until wakeCount changes.
func (w *wakeup) wake() {
	atomic.AddUint32(&w.wakeCount, 1)
	if atomic.LoadInt32(&w.sleeperCount) != 0 {
		sys.FutexWake(&w.wakeCount)
	}
}

// mailboxKey identifies a rank's mailbox when a peer requests it.
func mailboxKey(group string) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("mailbox/" + group)}
}

// openMailbox creates this rank's mailbox. Peers can map it until the caller withdraws the file.
func openMailbox(d *Device, config *driver.GroupConfig) (*mailbox, *os.File, error) {
	ranks := len(config.Ranks)
	f, err := sys.Memfd("symmem-mailbox", mailboxBytes(ranks))
	if err != nil {
		return nil, nil, err
	}

	if err := sys.SealSize(f); err != nil {
		closeErr := f.Close()
		return nil, nil, errors.Join(err, closeErr)
	}

	// This rank's GPU sets flags of messages from all ranks.
	const firstSender = 0
	m, err := mapMailbox(d, f, ranks, firstSender, ranks)
	if err != nil {
		closeErr := f.Close()
		return nil, nil, errors.Join(err, closeErr)
	}

	d.Exporter.Machine.Export(mailboxKey(config.ID), f)
	return m, f, nil
}

// fetchMailbox maps the mailbox of a peer. worldRank is the peer's rank among all ranks of the
// program.
func fetchMailbox(
	ctx context.Context, d *Device, config *driver.GroupConfig, worldRank int,
) (*mailbox, error) {
	f, err := d.Exporter.Machine.Fetch(ctx, worldRank, mailboxKey(config.ID))
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of rank %d of the world: %w", worldRank, err)
	}
	defer f.Close() // the mapping stays
	size, err := sys.FileSize(f)
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of rank %d of the world: %w", worldRank, err)
	}

	ranks := len(config.Ranks)
	expectedSize := mailboxBytes(ranks)
	if size < expectedSize {
		return nil, fmt.Errorf("the mailbox of rank %d of the world has %d bytes, want %d", worldRank,
			size, expectedSize)
	}

	// This rank's GPU uses only the flags of messages from this rank.
	const senders = 1
	return mapMailbox(d, f, ranks, config.Rank, senders)
}

// mapMailbox maps the file of a mailbox, and pins the flags of consecutive senders.
func mapMailbox(d *Device, f *os.File, ranks, firstSender, senders int) (*mailbox, error) {
	const offset = 0
	memory, err := sys.Map(f, offset, mailboxBytes(ranks))
	if err != nil {
		return nil, err
	}

	m := &mailbox{memory: memory, ranks: ranks}
	if err := d.GPU.Do(func() error { return m.pin(d, firstSender, senders) }); err != nil {
		closeErr := m.close(d)
		return nil, errors.Join(err, closeErr)
	}

	return m, nil
}

// pin registers the flags of consecutive senders with CUDA, so that this rank's GPU can access
// them. The CUDA context must be current.
func (m *mailbox) pin(d *Device, firstSender, senders int) error {
	address := uintptr(unsafe.Pointer(m.flags(firstSender)))
	bytes := int64(senders) * int64(unsafe.Sizeof(flags{}))
	if err := d.GPU.CUDA.MemHostRegister(address, bytes); err != nil {
		return fmt.Errorf("registering host memory for messages: %w", err)
	}

	m.pinnedHost = address // close must now unregister the memory, even after an error below
	deviceAddress, err := d.GPU.CUDA.MemHostDeviceAddress(address)
	m.pinnedDevice = deviceAddress
	return err
}

// deviceAddress returns the GPU's address of a pinned flag.
func (m *mailbox) deviceAddress(flag *uint32) uintptr {
	offset := uintptr(unsafe.Pointer(flag)) - m.pinnedHost
	return m.pinnedDevice + offset
}

// close unmaps the mailbox. Call it after the end of all work that uses the mailbox. If CUDA cannot
// unregister the flags, for example during a capture by another library, the mailbox stays mapped.
// CUDA would otherwise refuse to register other memory at these addresses.
func (m *mailbox) close(d *Device) error {
	if m.pinnedHost != 0 {
		err := d.GPU.Do(func() error { return d.GPU.CUDA.MemHostUnregister(m.pinnedHost) })
		if err != nil {
			m.memory.Keep()
			return fmt.Errorf("unregistering host memory for messages, which stays mapped: %w", err)
		}
	}

	return m.memory.Close()
}
