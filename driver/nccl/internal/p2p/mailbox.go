package p2p

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/spin"
	"symmem/internal/sys"
)

// mailbox is host memory in which other ranks announce messages to the rank that owns the mailbox.
// For example, rank 0 sends a message in slot 5 to rank 1. Rank 0 posts a header, and its GPU sets
// arrived[5] when the data is ready. Rank 1 claims the message by clearing arrived[5], copies the
// data, and sets copied[5]. Rank 0 can then reuse the slot.
//
// A mailbox consists of a wakeup, then flags for each sender, then a headerRing for each sender.
// Each of these begins at a page boundary.
type mailbox struct {
	memory       *sys.Mapping
	ranks        int     // size of the group
	pinnedHost   uintptr // host address of the pinned flags, or 0
	pinnedDevice uintptr // their address for this rank's GPU
}

// Slots is the number of slots for messages from one rank to another.
const Slots = 1024

const (
	pageBytes   = 4096
	uint32Bytes = 4
	uint64Bytes = 8

	flagCleared = 0
	flagSet     = 1
)

// wakeup lets senders wake the owner of a mailbox.
type wakeup struct {
	wakeCount    uint32 // calls of wake; a change ends the owner's sleep
	sleeperCount int32  // sleeping goroutines of the owner
	closed       uint32 // set once the owner no longer reads headers
	_            [pageBytes - 3*uint32Bytes]byte
}

// flags holds two flags for each slot. Each array fills one page.
type flags struct {
	arrived [Slots]uint32 // set when the data has arrived, cleared when the receiver claims it
	copied  [Slots]uint32 // set after the receiver's copy, cleared before the next message
}

// headerRing is a ring buffer of headers. The sender and the receiver write to different pages.
type headerRing struct {
	postedCount uint64 // headers that the sender has ever written
	// canOverwrite is set after a failure. The sender's GPU may then overwrite messages of CUDA
	// graphs, so the receiver must not claim them.
	canOverwrite uint32
	_            [pageBytes - uint64Bytes - uint32Bytes]byte
	readCount    uint64 // headers that the receiver has ever read
	_            [pageBytes - uint64Bytes]byte
	headers      [Slots]header // header n, counted from 1, is at index n % Slots
}

// header describes a message, whose data is in a segment (an allocation on the sender's GPU).
type header struct {
	tag               uint64
	number            uint64 // counts the sender's messages to this rank with this tag, from 1
	bytes             uint64
	digest            uint64 // hash of the sender's call; must match the receiver's
	collectivesBefore uint64 // collectives that the sender called before this message
	segment           uint64 // number of the segment, from 1, or 0 for an empty message
	segmentBytes      uint64
	offset            uint64 // of the data in the segment, in bytes
	slot              uint64 // index of the message's flags
	inGraph           uint64 // 1 for a Send in a CUDA graph, otherwise 0
}

func mailboxBytes(ranks int) int64 {
	perSender := int64(unsafe.Sizeof(flags{}) + unsafe.Sizeof(headerRing{}))
	return int64(unsafe.Sizeof(wakeup{})) + int64(ranks)*perSender
}

func (m *mailbox) wakeup() *wakeup { return (*wakeup)(m.memory.Base()) }

// flags returns the flags of messages from sender, a group rank.
func (m *mailbox) flags(sender int) *flags {
	offset := unsafe.Sizeof(wakeup{}) + uintptr(sender)*unsafe.Sizeof(flags{})
	return (*flags)(unsafe.Add(m.memory.Base(), offset))
}

func (m *mailbox) headersFrom(sender int) *headerRing {
	ringsOffset := unsafe.Sizeof(wakeup{}) + uintptr(m.ranks)*unsafe.Sizeof(flags{})
	offset := ringsOffset + uintptr(sender)*unsafe.Sizeof(headerRing{})
	return (*headerRing)(unsafe.Add(m.memory.Base(), offset))
}

func (r *headerRing) hasRoom() bool {
	unreadCount := spin.LoadAcquire64(&r.postedCount) - spin.LoadAcquire64(&r.readCount)
	return unreadCount < Slots
}

// post adds a header. The ring must have room.
func (r *headerRing) post(h *header) {
	next := spin.LoadAcquire64(&r.postedCount) + 1
	r.headers[next%Slots] = *h
	spin.StoreRelease64(&r.postedCount, next)
}

// wake increments wakeCount and wakes the owner's sleeping goroutines.
func (w *wakeup) wake() {
	atomic.AddUint32(&w.wakeCount, 1)
	if atomic.LoadInt32(&w.sleeperCount) != 0 {
		sys.FutexWake(&w.wakeCount)
	}
}

const (
	spinPolls  = 50  // first polls, without a pause
	yieldPolls = 200 // next polls, which yield the processor; later ones sleep
)

// pause waits before the next poll. A sleep ends early if wake has been called since the caller
// read wakeCount.
func (w *wakeup) pause(wakeCount uint32, polls int, maxSleep time.Duration) {
	switch {
	case polls < spinPolls && runtime.NumCPU() > 1:
		return
	case polls < spinPolls+yieldPolls:
		runtime.Gosched()
		return
	}

	atomic.AddInt32(&w.sleeperCount, 1)
	sys.FutexWait(&w.wakeCount, wakeCount, maxSleep)
	atomic.AddInt32(&w.sleeperCount, -1)
}

func mailboxKey(group string) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("mailbox/" + group)}
}

// openMailbox creates this rank's mailbox, and exports its file to peers.
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

	const firstSender = 0 // pin the flags of all senders
	m, err := mapMailbox(d, f, ranks, firstSender, ranks)
	if err != nil {
		closeErr := f.Close()
		return nil, nil, errors.Join(err, closeErr)
	}

	d.Exporter.Machine.Export(mailboxKey(config.ID), f)
	return m, f, nil
}

// fetchMailbox maps the mailbox of a peer. worldRank is the peer's rank in the whole program, not
// in the group.
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

	const senderCount = 1 // pin only the flags of messages from this rank
	return mapMailbox(d, f, ranks, config.Rank, senderCount)
}

// mapMailbox maps the file of a mailbox and pins the flags of consecutive senders.
func mapMailbox(d *Device, f *os.File, ranks, firstSender, senderCount int) (*mailbox, error) {
	const offset = 0
	memory, err := sys.Map(f, offset, mailboxBytes(ranks))
	if err != nil {
		return nil, err
	}

	m := &mailbox{memory: memory, ranks: ranks}
	if err := d.GPU.Do(func() error { return m.pin(d, firstSender, senderCount) }); err != nil {
		closeErr := m.close(d)
		return nil, errors.Join(err, closeErr)
	}

	return m, nil
}

// pin gives this rank's GPU access to the flags of consecutive senders. The CUDA context must be
// current.
func (m *mailbox) pin(d *Device, firstSender, senderCount int) error {
	address := uintptr(unsafe.Pointer(m.flags(firstSender)))
	bytes := int64(senderCount) * int64(unsafe.Sizeof(flags{}))
	if err := d.GPU.CUDA.MemHostRegister(address, bytes); err != nil {
		return fmt.Errorf("registering host memory for messages: %w", err)
	}

	m.pinnedHost = address // makes close unregister the memory, even after an error here
	deviceAddress, err := d.GPU.CUDA.MemHostDeviceAddress(address)
	m.pinnedDevice = deviceAddress
	return err
}

// deviceAddress returns the address by which the GPU accesses a pinned flag.
func (m *mailbox) deviceAddress(flag *uint32) uintptr {
	offset := uintptr(unsafe.Pointer(flag)) - m.pinnedHost
	return m.pinnedDevice + offset
}

// close unmaps the mailbox. No unfinished work may use it. If CUDA cannot unregister the flags, for
// example during a capture by another library, the mailbox stays mapped. Otherwise, CUDA would
// refuse to register new memory at the same addresses.
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
