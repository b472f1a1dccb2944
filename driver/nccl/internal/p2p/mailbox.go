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

// A mailbox is host memory in which a rank receives message headers. All ranks of the group and
// their GPUs can access it. The host can therefore see a message and end the wait of a stream
// without calling CUDA.
//
// It contains a wakeup, then flags for each sender, and then a headerRing for each sender.

const (
	// Slots is the maximum number of unfinished messages from one rank to another, a power of two.
	Slots = 1024
	// pageBytes is the alignment of data that different ranks or GPUs write.
	pageBytes = 4096
)

// header describes a message. Its data is in staging memory on the sender's GPU.
type header struct {
	tag               uint64
	number            uint64 // among the sender's messages to this rank with this tag, from 1
	bytes             uint64 // size of the message
	digest            uint64 // hash of the sender's call; must match the receiver's
	collectivesBefore uint64 // number of earlier collectives of the sender
	segment           uint64 // number of the staging segment, from 1, or 0 for an empty message
	size              uint64 // size of the segment in bytes
	offset            uint64 // offset of the message in the segment in bytes
	slot              uint64 // index in flags
	inGraph           uint64 // 1 for a Send in a graph, which always uses the same slot, or 0
}

// flags holds two words for each slot. A sender uses a slot for one message at a time.
type flags struct {
	arrived [Slots]uint32 // 1 from the arrival of the data until the receiver claims the message
	copied  [Slots]uint32 // 1 from the end of the receiver's copy until the sender reuses the slot
}

// headerRing is a ring buffer of headers from one rank. The counts never decrease.
type headerRing struct {
	postedCount uint64 // headers that the sender has written
	// canOverwrite is 1 once launches of graphs might overwrite uncopied messages. The sender sets
	// it after a failure. The receiver must then not claim messages of graphs.
	canOverwrite uint32
	_            [pageBytes - 12]byte
	readCount    uint64 // headers that the receiver has read
	_            [pageBytes - 8]byte
	headers      [Slots]header // header n, from 1, is at index n % Slots
}

// wakeup is the part of a mailbox with which peers wake its owner.
type wakeup struct {
	wakeCount    uint32 // number of calls of wake, and the futex word on which the owner sleeps
	sleeperCount int32  // goroutines of the owner that sleep
	closed       uint32 // 1 once the owner no longer reads headers
	_            [pageBytes - 12]byte
}

// mailbox is a mapping of this rank's mailbox or a peer's.
type mailbox struct {
	memory       *sys.Mapping
	ranks        int     // size of the group
	pinnedHost   uintptr // host address of the flags that are registered with CUDA, or 0
	pinnedDevice uintptr // device address of the same flags
}

func mailboxBytes(ranks int) int64 {
	perSender := int64(unsafe.Sizeof(flags{}) + unsafe.Sizeof(headerRing{}))
	return int64(unsafe.Sizeof(wakeup{})) + int64(ranks)*perSender
}

func (m *mailbox) wakeup() *wakeup { return (*wakeup)(m.memory.Base()) }

// flags returns the flags for messages from a group rank.
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

// deviceAddress returns the GPU's address of a word in registered flags (see pin).
func (m *mailbox) deviceAddress(word *uint32) uintptr {
	return m.pinnedDevice + uintptr(unsafe.Pointer(word)) - m.pinnedHost
}

// wake wakes goroutines of the owner that sleep in wakeup.pause.
func (w *wakeup) wake() {
	atomic.AddUint32(&w.wakeCount, 1)
	if atomic.LoadInt32(&w.sleeperCount) != 0 {
		sys.FutexWake(&w.wakeCount)
	}
}

// post adds a header. Call it only if hasRoom returns true.
func (r *headerRing) post(h *header) {
	next := spin.LoadAcquire64(&r.postedCount) + 1
	r.headers[next%Slots] = *h
	spin.StoreRelease64(&r.postedCount, next)
}

func (r *headerRing) hasRoom() bool {
	return spin.LoadAcquire64(&r.postedCount)-spin.LoadAcquire64(&r.readCount) < Slots
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

// close unmaps the mailbox. Call it after the end of all work that uses the mailbox. If CUDA cannot
// unregister the memory, for example during a capture by another library, the mailbox stays
// mapped. CUDA would otherwise refuse to register other memory at these addresses.
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

// mailboxKey returns the key under which peers request a rank's mailbox.
func mailboxKey(group string) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("mailbox/" + group)}
}

// openMailbox creates this rank's mailbox. Peers can map it until the caller withdraws the file.
func openMailbox(d *Device, config *driver.GroupConfig) (*mailbox, *os.File, error) {
	ranks := len(config.Ranks)
	bytes := mailboxBytes(ranks)
	f, err := sys.Memfd("symmem-mailbox", bytes)
	if err != nil {
		return nil, nil, err
	}

	if err := sys.SealSize(f); err != nil {
		closeErr := f.Close()
		return nil, nil, errors.Join(err, closeErr)
	}

	const offset = 0
	memory, err := sys.Map(f, offset, bytes)
	if err != nil {
		closeErr := f.Close()
		return nil, nil, errors.Join(err, closeErr)
	}

	m := &mailbox{memory: memory, ranks: ranks}
	// This rank's GPU sets flags of messages from all ranks.
	const firstSender = 0
	if err := d.GPU.Do(func() error { return m.pin(d, firstSender, ranks) }); err != nil {
		unmapErr := m.close(d)
		closeErr := f.Close()
		return nil, nil, errors.Join(err, unmapErr, closeErr)
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
	bytes := mailboxBytes(len(config.Ranks))
	size, err := sys.FileSize(f)
	if err != nil {
		return nil, fmt.Errorf("opening the mailbox of rank %d of the world: %w", worldRank, err)
	}

	if size < bytes {
		return nil, fmt.Errorf("the mailbox of rank %d of the world has %d bytes, want %d", worldRank,
			size, bytes)
	}

	const offset = 0
	memory, err := sys.Map(f, offset, bytes)
	if err != nil {
		return nil, err
	}

	m := &mailbox{memory: memory, ranks: len(config.Ranks)}
	// This rank's GPU uses only the flags of messages from this rank.
	const senders = 1
	if err := d.GPU.Do(func() error { return m.pin(d, config.Rank, senders) }); err != nil {
		unmapErr := m.close(d)
		return nil, errors.Join(err, unmapErr)
	}

	return m, nil
}
