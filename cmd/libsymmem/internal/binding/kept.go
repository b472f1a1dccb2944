package binding

import (
	"fmt"
	"slices"
	"sync"

	"symmem"
	"symmem/internal/sys"
)

// keeping tracks memory of earlier ranks of this process: buffers that were live at a Close, which
// callers may still use and free, and unmapped segments.
type keeping struct {
	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers; copied on write; guarded by mu

	// goneMu is a leaf, because pools call unmapped with their lock held.
	goneMu sync.Mutex
	gone   []span // the segments unmapped last; guarded by goneMu
}

// span represents an address range.
type span struct {
	start uintptr
	bytes int64
}

// contains reports whether an address is in the span.
func (s span) contains(address uintptr) bool { return address-s.start < uintptr(s.bytes) }

// maxGone is the number of unmapped segments to remember.
const maxGone = 1024

// keep adds a rank that is about to close, if it has live buffers.
func (k *keeping) keep(rank symmem.Interop) {
	if holdsBuffers(rank) {
		k.replace(func(ranks []symmem.Interop) []symmem.Interop { return append(ranks, rank) })
	}
}

// holdsBuffers reports whether a rank has live buffers.
func holdsBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil)
	return buffers > 0
}

// replace replaces the list of ranks with a modified copy.
func (k *keeping) replace(change func([]symmem.Interop) []symmem.Interop) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = change(slices.Clone(k.ranks))
}

// closed returns the list of ranks. Callers query these without k.mu, since the pools of a rank may
// be locked for as long as a call waits for other ranks.
func (k *keeping) closed() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
}

// unmapped records that a segment was unmapped. The caller holds the lock of a pool.
func (k *keeping) unmapped(e symmem.SegmentEvent) {
	k.goneMu.Lock()
	defer k.goneMu.Unlock()
	k.gone = slices.DeleteFunc(k.gone, func(s span) bool { return s.start == e.Address })
	if len(k.gone) == maxGone {
		k.gone = slices.Delete(k.gone, 0, 1)
	}
	k.gone = append(k.gone, span{e.Address, e.Bytes})
}

// unmappedAt reports whether the latest segment at an address was unmapped.
func (k *keeping) unmappedAt(address uintptr) bool {
	k.goneMu.Lock()
	defer k.goneMu.Unlock()
	return slices.ContainsFunc(k.gone, func(s span) bool { return s.contains(address) })
}

// covers returns an error for freed memory of earlier ranks. Host memory is accepted if something
// else has been mapped at the address since.
func (k *keeping) covers(address uintptr, bytes int64, onHost bool) error {
	for _, rank := range k.closed() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}
	if onHost && k.unmappedAt(address) && !sys.Readable(address) {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}
	return nil
}

// free frees a buffer of an earlier rank. It reports whether the address belongs to such a buffer.
func (k *keeping) free(address uintptr) (bool, error) {
	for _, rank := range k.closed() {
		b, err := rank.Retire(address)
		if err != nil {
			continue
		}
		if !holdsBuffers(rank) {
			k.replace(func(ranks []symmem.Interop) []symmem.Interop {
				return slices.DeleteFunc(ranks, func(r symmem.Interop) bool { return r == rank })
			})
		}
		return true, b.Free()
	}
	return false, nil
}
