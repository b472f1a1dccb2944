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

const (
	// Slots is the maximum number of unfinished messages from one rank to another, a power of two.
	Slots = 1024
	// pageBytes is the alignment of data that different ranks or GPUs write.
	pageBytes = 4096
)

type header struct {
	tag, number, bytes uint64
	digest             uint64 // hash of the sender's call; must match the receiver's
	collectivesBefore  uint64 // number of earlier collectives of the sender
	segment            uint64 // number of the staging segment, from 1, or 0 for an empty message
	size               uint64 // size of the segment in bytes
	offset             uint64 // offset of the message in the segment in bytes
	slot               uint64 // index in flags
	inGraph            uint64 // 1 for a Send in a graph, which always uses the same slot, or 0
}

// flags holds two words for each slot, which GPUs write. arrived is 1 from the arrival of a message
// until the receiver claims it. copied is 1 from the end of the copy until the sender reuses the
// slot.
type flags struct{ arrived, copied [Slots]uint32 }

// headerRing is a ring buffer of headers from one rank. The counts never decrease.
type headerRing struct {
	postedCount uint64
	// canOverwrite is 1 once launches of graphs might overwrite uncopied messages. The receiver
	// must then not claim messages of graphs.
	canOverwrite uint32
	_            [pageBytes - 12]byte
	readCount    uint64
	_            [pageBytes - 8]byte
	headers      [Slots]header // header n, from 1, is at index n % Slots
}

// wakeup is the part of a mailbox with which peers wake its owner.
type wakeup struct {
	wakeCount    uint32 // futex word
	sleeperCount int32  // goroutines of the owner that sleep
	closed       uint32 // 1 once the owner no longer reads headers
	_            [pageBytes - 12]byte
}

type mailbox struct {
	memory       *sys.Mapping
	ranks        int
	pinnedHost   uintptr // host address of the flags that are registered with CUDA, or 0
	pinnedDevice uintptr // device address of the same flags
}

func mailboxBytes(ranks int) int64 {
	return int64(unsafe.Sizeof(wakeup{})) +
		int64(ranks)*int64(unsafe.Sizeof(flags{})+unsafe.Sizeof(headerRing{}))
}

func (m *mailbox) wakeup() *wakeup { return (*wakeup)(m.memory.Base()) }

func (m *mailbox) flags(sender int) *flags {
	offset := unsafe.Sizeof(wakeup{}) + uintptr(sender)*unsafe.Sizeof(flags{})
	return (*flags)(unsafe.Add(m.memory.Base(), offset))
}

func (m *mailbox) headersFrom(sender int) *headerRing {
	offset := unsafe.Sizeof(wakeup{}) + uintptr(m.ranks)*unsafe.Sizeof(flags{}) +
		uintptr(sender)*unsafe.Sizeof(headerRing{})
	return (*headerRing)(unsafe.Add(m.memory.Base(), offset))
}

// deviceAddress returns the GPU's address of a word in registered flags.
func (m *mailbox) deviceAddress(word *uint32) uintptr {
	return m.pinnedDevice + uintptr(unsafe.Pointer(word)) - m.pinnedHost
}

func (w *wakeup) wake() {
	atomic.AddUint32(&w.wakeCount, 1)
	if atomic.LoadInt32(&w.sleeperCount) != 0 {
		sys.FutexWake(&w.wakeCount)
	}
}

// post adds a header. It must be called only if hasRoom returns true.
func (r *headerRing) post(h *header) {
	next := spin.LoadAcquire64(&r.postedCount) + 1
	r.headers[next%Slots] = *h
	spin.StoreRelease64(&r.postedCount, next)
}

func (r *headerRing) hasRoom() bool {
	return spin.LoadAcquire64(&r.postedCount)-spin.LoadAcquire64(&r.readCount) < Slots
}

// pin registers the flags of consecutive senders with CUDA. The CUDA context must be current.
func (m *mailbox) pin(d *Device, firstSender, senders int) error {
	address := uintptr(unsafe.Pointer(m.flags(firstSender)))
	err := d.GPU.CUDA.MemHostRegister(address, int64(senders)*int64(unsafe.Sizeof(flags{})))
	if err != nil {
		return fmt.Errorf("registering host memory for messages: %w", err)
	}
	m.pinnedHost = address
	m.pinnedDevice, err = d.GPU.CUDA.MemHostDeviceAddress(address)
	return err
}

// close unmaps the mailbox. It must be called after all work that uses the mailbox. If CUDA cannot
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

func mailboxKey(group string) handoff.Key {
	return handoff.Key{Namespace: handoff.NamespaceOf("mailbox/" + group)}
}

// openMailbox creates a mailbox, which peers can map until the caller withdraws the file.
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
		return nil, fmt.Errorf("the mailbox of rank %d of the world has %d bytes, want %d", rank, size,
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
