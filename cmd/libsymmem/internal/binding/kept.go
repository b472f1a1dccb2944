package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRankBuffers finds buffers that were live when their rank was closed by force, usually
// because tensors still use them. They stay usable until they are freed. It also remembers unmapped
// segments, the units in which pools map memory.
type closedRankBuffers struct {
	isNonEmpty atomic.Bool // saves a lock in checkNotFreed while nothing is remembered

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers, copied on write; guarded by mu

	// unmappedMu is acquired with a pool's lock held, so do not acquire other locks inside it.
	unmappedMu       sync.Mutex
	unmappedSegments []addressRange // oldest first; guarded by unmappedMu
}

// keepRank remembers a rank that is about to be closed, if it has live buffers.
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

// updateRanks replaces the ranks by the result of change, which may modify its argument.
func (k *closedRankBuffers) updateRanks(change func([]symmem.Interop) []symmem.Interop) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ranks = change(slices.Clone(k.ranks))
	k.isNonEmpty.Store(true)
}

// closedRanks returns a slice that is never modified. Callers can use it without mu, and must not
// hold mu while they call a rank's method, which may wait for a pool's lock.
func (k *closedRankBuffers) closedRanks() []symmem.Interop {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ranks
}

// freeBuffer frees the buffer of a closed rank that begins at an address, if there is one.
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
	offset := address - s.start // wraps around to a large number if address < s.start
	return offset < uintptr(s.bytes)
}

// maxUnmappedSegments limits unmappedSegments, from which the oldest are dropped.
const maxUnmappedSegments = 1024

// recordUnmapped remembers an unmapped segment of any rank, in place of one at the same address.
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

// checkNotFreed returns an error for freed memory of a closed rank. On the host backend, it also
// returns one for memory in an unmapped segment, unless the address has been mapped again.
func (k *closedRankBuffers) checkNotFreed(address uintptr, bytes int64, isHost bool) error {
	if !k.isNonEmpty.Load() {
		return nil
	}

	for _, rank := range k.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}

	isUnmapped := isHost && k.wasUnmapped(address) && !sys.IsReadable(address)
	if isUnmapped {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}

	return nil
}
