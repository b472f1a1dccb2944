package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// A process is a rank of each world that it has opened. Suppose that rank 3 closes a world by force
// while two of its buffers are live, because tensors still use them:
//
//   - The buffers stay usable. Later frees must find them, so closedRankBuffers keeps the rank.
//   - After one buffer was freed, calls that pass an address in it get an error.
//   - After both were freed, closedRankBuffers forgets the rank. The segment (a piece of mapped
//     memory) that contained them may be unmapped. On the host backend, calls that pass an address
//     in it get an error, unless the address was mapped again.

// closedRankBuffers remembers live buffers of closed ranks, and segments that were unmapped.
type closedRankBuffers struct {
	isNonEmpty atomic.Bool // while it is false, checkNotFreed takes no lock

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers, copied on write; guarded by mu

	// unmappedMu is acquired while a pool's lock is held (by recordUnmapped). To prevent a deadlock,
	// no lock may be acquired while unmappedMu is held.
	unmappedMu       sync.Mutex
	unmappedSegments []addressRange // oldest first; guarded by unmappedMu
}

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
// use it without holding mu.
//
// Callers must not hold mu while they call a method of a rank. The method can wait for a pool's
// lock, and another call may hold that lock while it waits for other ranks.
func (k *closedRankBuffers) closedRanks() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
}

// freeBuffer frees the buffer that begins at an address, if a closed rank has one. Otherwise, it
// returns false.
func (k *closedRankBuffers) freeBuffer(address uintptr) (isFound bool, err error) {
	for _, rank := range k.closedRanks() {
		b, err := rank.Retire(address) // later calls do not find the buffer
		if err != nil {
			continue // no buffer of this rank begins at the address
		}

		if !hasLiveBuffers(rank) {
			k.forgetRank(rank)
		}

		return true, b.Free()
	}

	return false, nil
}

func (k *closedRankBuffers) forgetRank(rank symmem.Interop) {
	isRank := func(other symmem.Interop) bool { return other == rank }
	k.updateRanks(func(ranks []symmem.Interop) []symmem.Interop {
		return slices.DeleteFunc(ranks, isRank)
	})
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

// recordUnmapped remembers a segment that was unmapped, of an open or closed rank. It forgets an
// older segment at the same address.
func (k *closedRankBuffers) recordUnmapped(e symmem.SegmentEvent) {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	isAtSameAddress := func(s addressRange) bool { return s.start == e.Address }
	k.unmappedSegments = slices.DeleteFunc(k.unmappedSegments, isAtSameAddress)
	if len(k.unmappedSegments) == maxUnmappedSegments {
		k.unmappedSegments = slices.Delete(k.unmappedSegments, 0, 1)
	}

	unmapped := addressRange{start: e.Address, bytes: e.Bytes}
	k.unmappedSegments = append(k.unmappedSegments, unmapped)
	k.isNonEmpty.Store(true)
}

func (k *closedRankBuffers) wasUnmapped(address uintptr) bool {
	k.unmappedMu.Lock()
	defer k.unmappedMu.Unlock()
	containsAddress := func(s addressRange) bool { return s.contains(address) }
	return slices.ContainsFunc(k.unmappedSegments, containsAddress)
}

// checkNotFreed returns an error if the memory belonged to a closed rank and has been freed.
//
// On the host backend (isHost), whose memory is ordinary memory of the process, it also returns an
// error if the memory is in a segment that was unmapped. But if its address was mapped again, it is
// other memory, and valid.
func (k *closedRankBuffers) checkNotFreed(address uintptr, bytes int64, isHost bool) error {
	if !k.isNonEmpty.Load() {
		return nil
	}

	for _, rank := range k.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}

	if isHost && k.wasUnmapped(address) {
		isMappedAgain := sys.IsReadable(address)
		if !isMappedAgain {
			return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
		}
	}

	return nil
}
