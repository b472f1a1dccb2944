package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// keptMemory tracks the buffers that were live when their rank or pool was closed, because callers
// may still use and free them. It also remembers unmapped segments.
type keptMemory struct {
	// used is set once keptMemory contains anything. Until then, calls need not take a lock.
	used atomic.Bool

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers, copied on write; guarded by mu

	// unmappedMu is a leaf lock, because recordUnmapped is called with a pool's lock held.
	unmappedMu sync.Mutex
	unmapped   []span // most recently unmapped segments, oldest first; guarded by unmappedMu
}

type span struct {
	start uintptr
	bytes int64
}

func (s span) contains(address uintptr) bool { return address-s.start < uintptr(s.bytes) }

const maxUnmapped = 1024

// keep adds rank, which is about to be closed, if it has live buffers.
func (k *keptMemory) keep(rank symmem.Interop) {
	if holdsBuffers(rank) {
		k.update(func(ranks []symmem.Interop) []symmem.Interop { return append(ranks, rank) })
	}
}

func holdsBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil)
	return buffers > 0
}

func (k *keptMemory) update(change func([]symmem.Interop) []symmem.Interop) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = change(slices.Clone(k.ranks))
	k.used.Store(true)
}

// closedRanks returns the list of closed ranks. Callers do not hold k.mu while they use the list,
// because they lock the ranks' pools, and a pool may stay locked while a call waits for other
// ranks.
func (k *keptMemory) closedRanks() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
}

// recordUnmapped records an unmapped segment. It is called with a pool's lock held.
func (k *keptMemory) recordUnmapped(e symmem.SegmentEvent) {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	k.unmapped = slices.DeleteFunc(k.unmapped, func(s span) bool { return s.start == e.Address })
	if len(k.unmapped) == maxUnmapped {
		k.unmapped = slices.Delete(k.unmapped, 0, 1)
	}
	k.unmapped = append(k.unmapped, span{e.Address, e.Bytes})
	k.used.Store(true)
}

func (k *keptMemory) isUnmapped(address uintptr) bool {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	return slices.ContainsFunc(k.unmapped, func(s span) bool { return s.contains(address) })
}

// checkFreed returns an error if the memory belonged to a closed rank and has been freed. On the
// host backend, it accepts memory of an unmapped segment if the addresses have been mapped again.
func (k *keptMemory) checkFreed(address uintptr, bytes int64, onHost bool) error {
	if !k.used.Load() {
		return nil
	}
	for _, rank := range k.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}
	if onHost && k.isUnmapped(address) && !sys.Readable(address) {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}
	return nil
}

// free frees a buffer of a closed rank, and reports whether the address belongs to such a buffer.
func (k *keptMemory) free(address uintptr) (bool, error) {
	for _, rank := range k.closedRanks() {
		b, err := rank.Retire(address)
		if err != nil {
			continue
		}
		if !holdsBuffers(rank) {
			k.update(func(ranks []symmem.Interop) []symmem.Interop {
				return slices.DeleteFunc(ranks, func(r symmem.Interop) bool { return r == rank })
			})
		}
		return true, b.Free()
	}
	return false, nil
}
