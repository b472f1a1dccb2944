package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRankBuffers remembers memory that belonged to symmem when a rank was open. This is the
// memory of live buffers of closed ranks, which callers can still use, and of unmapped segments. A
// segment is a piece of mapped memory that contains buffers.
type closedRankBuffers struct {
	isNonEmpty atomic.Bool // while it is false, checkNotFreed takes no lock

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers, copied on write; guarded by mu

	// unmappedMu is acquired with a pool's lock held (by recordUnmapped). To prevent a deadlock, no
	// lock may be acquired while it is held.
	unmappedMu       sync.Mutex
	unmappedSegments []addressRange // oldest first; guarded by unmappedMu
}

type addressRange struct {
	start uintptr
	bytes int64
}

func (s addressRange) contains(address uintptr) bool {
	offset := address - s.start // overflows to a large number if address is below start
	return offset < uintptr(s.bytes)
}

// maxUnmappedSegments limits the length of unmappedSegments. The oldest segments are dropped.
const maxUnmappedSegments = 1024

// keepRank remembers a rank that is about to close, if it has live buffers.
func (k *closedRankBuffers) keepRank(rank symmem.Interop) {
	if !hasLiveBuffers(rank) {
		return
	}

	k.updateRanks(func(ranks []symmem.Interop) []symmem.Interop { return append(ranks, rank) })
}

func hasLiveBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil) // nil means all pools
	return buffers > 0
}

// updateRanks replaces the ranks by the result of change, which gets a copy that it can modify.
func (k *closedRankBuffers) updateRanks(change func([]symmem.Interop) []symmem.Interop) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = change(slices.Clone(k.ranks))
	k.isNonEmpty.Store(true)
}

// closedRanks returns the closed ranks with live buffers. The slice is never modified, so callers
// use it without k.mu. They must not hold k.mu while they call methods of a rank. Such a method can
// wait for a pool's lock, which another call may hold while it waits for other ranks.
func (k *closedRankBuffers) closedRanks() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
}

// recordUnmapped remembers a segment that was unmapped.
func (k *closedRankBuffers) recordUnmapped(e symmem.SegmentEvent) {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	// An earlier segment at the same address is outdated.
	k.unmappedSegments = slices.DeleteFunc(k.unmappedSegments, func(s addressRange) bool {
		return s.start == e.Address
	})
	if len(k.unmappedSegments) == maxUnmappedSegments {
		k.unmappedSegments = slices.Delete(k.unmappedSegments, 0, 1)
	}

	unmapped := addressRange{start: e.Address, bytes: e.Bytes}
	k.unmappedSegments = append(k.unmappedSegments, unmapped)
	k.isNonEmpty.Store(true)
}

func (k *closedRankBuffers) isUnmapped(address uintptr) bool {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	return slices.ContainsFunc(k.unmappedSegments, func(s addressRange) bool {
		return s.contains(address)
	})
}

// checkNotFreed returns an error if the memory belonged to a closed rank and has been freed. For
// the host backend (isHost), it also returns an error if the memory is in an unmapped segment. The
// address of such a segment can be mapped again for other memory, which is no error.
func (k *closedRankBuffers) checkNotFreed(address uintptr, bytes int64, isHost bool) error {
	if !k.isNonEmpty.Load() {
		return nil
	}

	for _, rank := range k.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}

	if isHost && k.isUnmapped(address) {
		isMappedAgain := sys.IsReadable(address)
		if !isMappedAgain {
			return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
		}
	}

	return nil
}

// freeBuffer frees the buffer that begins at an address, if a closed rank has one. Otherwise, it
// returns false.
func (k *closedRankBuffers) freeBuffer(address uintptr) (bool, error) {
	for _, rank := range k.closedRanks() {
		b, err := rank.Retire(address)
		if err != nil {
			continue // the buffer is not one of this rank
		}

		if !hasLiveBuffers(rank) {
			isRank := func(other symmem.Interop) bool { return other == rank }
			k.updateRanks(func(ranks []symmem.Interop) []symmem.Interop {
				return slices.DeleteFunc(ranks, isRank)
			})
		}

		err = b.Free()
		return true, err
	}

	return false, nil
}
