package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRankBuffers finds memory that belonged to symmem when a rank was open: live buffers of
// closed ranks, which callers can still use, and segments that were unmapped.
type closedRankBuffers struct {
	isNonEmpty atomic.Bool // while it is false, checkNotFreed takes no lock

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers, copied on write; guarded by mu

	// recordUnmapped is called with a pool's lock held, so no lock may be acquired with unmappedMu
	// held.
	unmappedMu       sync.Mutex
	unmappedSegments []addressRange // oldest first; guarded by unmappedMu
}

type addressRange struct {
	start uintptr
	bytes int64
}

// contains relies on overflow: if address is below start, the difference is a large number.
func (s addressRange) contains(address uintptr) bool { return address-s.start < uintptr(s.bytes) }

// maxUnmappedSegments limits the memory of the record. The oldest segments are dropped.
const maxUnmappedSegments = 1024

func (k *closedRankBuffers) keepRank(rank symmem.Interop) {
	if hasLiveBuffers(rank) {
		k.updateRanks(func(ranks []symmem.Interop) []symmem.Interop { return append(ranks, rank) })
	}
}

func hasLiveBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil)
	return buffers > 0
}

func (k *closedRankBuffers) updateRanks(change func([]symmem.Interop) []symmem.Interop) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = change(slices.Clone(k.ranks))
	k.isNonEmpty.Store(true)
}

// closedRanks returns the closed ranks with live buffers. The slice is never modified. Callers
// lock pools, so they must not hold k.mu: a call may hold a pool's lock while it waits for ranks.
func (k *closedRankBuffers) closedRanks() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
}

func (k *closedRankBuffers) recordUnmapped(e symmem.SegmentEvent) {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	k.unmappedSegments = slices.DeleteFunc(k.unmappedSegments, func(s addressRange) bool {
		return s.start == e.Address
	})
	if len(k.unmappedSegments) == maxUnmappedSegments {
		k.unmappedSegments = slices.Delete(k.unmappedSegments, 0, 1)
	}
	k.unmappedSegments = append(k.unmappedSegments, addressRange{e.Address, e.Bytes})
	k.isNonEmpty.Store(true)
}

func (k *closedRankBuffers) isUnmapped(address uintptr) bool {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	return slices.ContainsFunc(k.unmappedSegments, func(s addressRange) bool {
		return s.contains(address)
	})
}

// checkNotFreed returns an error if the memory belonged to a closed rank and has been freed. On
// the host backend (onHost), it also finds memory of unmapped segments, unless the address has
// been mapped again.
func (k *closedRankBuffers) checkNotFreed(address uintptr, bytes int64, onHost bool) error {
	if !k.isNonEmpty.Load() {
		return nil
	}
	for _, rank := range k.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}
	if onHost && k.isUnmapped(address) && !sys.IsReadable(address) {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}
	return nil
}

// freeBuffer frees the buffer of a closed rank at an address, and reports whether there is one.
func (k *closedRankBuffers) freeBuffer(address uintptr) (bool, error) {
	for _, rank := range k.closedRanks() {
		b, err := rank.Retire(address)
		if err != nil {
			continue
		}
		if !hasLiveBuffers(rank) {
			k.updateRanks(func(ranks []symmem.Interop) []symmem.Interop {
				return slices.DeleteFunc(ranks, func(r symmem.Interop) bool { return r == rank })
			})
		}
		return true, b.Free()
	}
	return false, nil
}
