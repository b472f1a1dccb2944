package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRankBuffers finds buffers that were live when their rank was closed by force, and that stay
// usable until they are freed. It also remembers unmapped segments, the units in which pools map
// memory.
type closedRankBuffers struct {
	isNonEmpty atomic.Bool // saves a lock in checkNotFreed while nothing is remembered

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks with live buffers, copied on write; guarded by mu

	// unmappedMu is acquired with a pool's lock held, so do not acquire other locks inside it.
	unmappedMu       sync.Mutex
	unmappedSegments []addressRange // oldest first; guarded by unmappedMu
}

// keepRank remembers a rank that is about to be closed, if it has live buffers.
func (c *closedRankBuffers) keepRank(rank symmem.Interop) {
	if !hasLiveBuffers(rank) {
		return
	}

	c.updateRanks(func(ranks []symmem.Interop) []symmem.Interop { return append(ranks, rank) })
}

func hasLiveBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil) // in all pools
	return buffers > 0
}

// updateRanks replaces the ranks by the result of change, which may modify its argument.
func (c *closedRankBuffers) updateRanks(change func([]symmem.Interop) []symmem.Interop) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks = change(slices.Clone(c.ranks))
	c.isNonEmpty.Store(true)
}

// closedRanks returns a slice that is never modified. Use it without mu, because methods of a rank
// may wait for a pool's lock.
func (c *closedRankBuffers) closedRanks() []symmem.Interop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ranks
}

// freeBuffer frees the buffer of a closed rank that begins at an address, if there is one.
func (c *closedRankBuffers) freeBuffer(address uintptr) (isFound bool, err error) {
	for _, rank := range c.closedRanks() {
		b, err := rank.Retire(address) // later calls do not find the buffer
		if err != nil {
			continue // the rank has no such buffer
		}

		if !hasLiveBuffers(rank) {
			c.forgetRank(rank)
		}

		return true, b.Free()
	}

	return false, nil
}

func (c *closedRankBuffers) forgetRank(rank symmem.Interop) {
	isRank := func(other symmem.Interop) bool { return other == rank }
	c.updateRanks(func(ranks []symmem.Interop) []symmem.Interop {
		return slices.DeleteFunc(ranks, isRank)
	})
}

type addressRange struct {
	start uintptr
	bytes int64
}

func (r addressRange) contains(address uintptr) bool {
	offset := address - r.start // wraps around to a large number if address < r.start
	return offset < uintptr(r.bytes)
}

// maxUnmappedSegments limits unmappedSegments, from which the oldest are dropped.
const maxUnmappedSegments = 1024

// recordUnmapped remembers an unmapped segment of any rank, in place of one at the same address.
func (c *closedRankBuffers) recordUnmapped(e symmem.SegmentEvent) {
	c.unmappedMu.Lock()
	defer c.unmappedMu.Unlock()
	isAtSameAddress := func(r addressRange) bool { return r.start == e.Address }
	c.unmappedSegments = slices.DeleteFunc(c.unmappedSegments, isAtSameAddress)
	if len(c.unmappedSegments) == maxUnmappedSegments {
		c.unmappedSegments = slices.Delete(c.unmappedSegments, 0, 1)
	}

	unmapped := addressRange{start: e.Address, bytes: e.Bytes}
	c.unmappedSegments = append(c.unmappedSegments, unmapped)
	c.isNonEmpty.Store(true)
}

func (c *closedRankBuffers) wasUnmapped(address uintptr) bool {
	c.unmappedMu.Lock()
	defer c.unmappedMu.Unlock()
	containsAddress := func(r addressRange) bool { return r.contains(address) }
	return slices.ContainsFunc(c.unmappedSegments, containsAddress)
}

// checkNotFreed returns an error for freed memory of a closed rank. On the host backend, it also
// returns one for memory in an unmapped segment, unless the address has been mapped again.
func (c *closedRankBuffers) checkNotFreed(address uintptr, bytes int64, isHost bool) error {
	if !c.isNonEmpty.Load() {
		return nil
	}

	for _, rank := range c.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil {
			return err
		}
	}

	isUnmapped := isHost && c.wasUnmapped(address) && !sys.IsReadable(address)
	if isUnmapped {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}

	return nil
}
