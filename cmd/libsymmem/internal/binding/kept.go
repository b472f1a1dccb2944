package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRankBuffers remembers ranks that were closed by force with live buffers, which stay usable
// until they are freed. It also remembers unmapped segments, the units in which pools map memory.
type closedRankBuffers struct {
	isInUse atomic.Bool // set by the first entry and never cleared; saves checkNotFreed a lock

	mu    sync.Mutex
	ranks []symmem.Interop // closed ranks; copied on write; guarded by mu

	// unmappedMu is acquired with a pool's lock held, so do not acquire other locks inside it.
	unmappedMu       sync.Mutex
	unmappedSegments []addressRange // oldest first; guarded by unmappedMu
}

// keepRank remembers a rank that is about to be closed, if it has live buffers.
func (c *closedRankBuffers) keepRank(rank symmem.Interop) {
	if !hasLiveBuffers(rank) {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks = append(slices.Clone(c.ranks), rank)
	c.isInUse.Store(true)
}

func hasLiveBuffers(rank symmem.Interop) bool {
	buffers, _ := rank.Live(nil) // in all pools
	return buffers > 0
}

// closedRanks returns the closed ranks, in a slice that is never modified. Do not hold mu while
// calling methods of a rank, because they may wait for a pool's lock.
func (c *closedRankBuffers) closedRanks() []symmem.Interop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ranks
}

// freeBuffer frees the buffer at an address, if the buffer belongs to a closed rank.
func (c *closedRankBuffers) freeBuffer(address uintptr) (isFound bool, err error) {
	for _, rank := range c.closedRanks() {
		buffer, err := rank.Retire(address) // later calls do not find the buffer
		if err != nil {
			continue // the rank has no such buffer
		}

		if !hasLiveBuffers(rank) {
			c.forgetRank(rank)
		}

		return true, buffer.Free()
	}

	return false, nil
}

func (c *closedRankBuffers) forgetRank(rank symmem.Interop) {
	isSame := func(other symmem.Interop) bool { return other == rank }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks = slices.DeleteFunc(slices.Clone(c.ranks), isSame)
}

type addressRange struct {
	start uintptr
	bytes int64
}

func (r addressRange) contains(address uintptr) bool {
	offset := address - r.start // wraps around to a large number if address < r.start
	return offset < uintptr(r.bytes)
}

// maxUnmappedSegments limits unmappedSegments. Beyond the limit, the oldest are forgotten.
const maxUnmappedSegments = 1024

// recordUnmapped remembers a segment that was unmapped by any rank. It forgets an older segment at
// the same address.
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
	c.isInUse.Store(true)
}

func (c *closedRankBuffers) wasUnmapped(address uintptr) bool {
	c.unmappedMu.Lock()
	defer c.unmappedMu.Unlock()
	containsAddress := func(r addressRange) bool { return r.contains(address) }
	return slices.ContainsFunc(c.unmappedSegments, containsAddress)
}

// checkNotFreed returns an error if memory was freed in a closed rank. On the host backend, it also
// detects memory in unmapped segments, as long as the address has not been mapped again.
func (c *closedRankBuffers) checkNotFreed(address uintptr, bytes int64, isHost bool) error {
	if !c.isInUse.Load() {
		return nil
	}

	for _, rank := range c.closedRanks() {
		if _, err := rank.Memory(address, bytes); err != nil { // the memory was freed
			return err
		}
	}

	isUnmapped := isHost && c.wasUnmapped(address) && !sys.IsReadable(address)
	if isUnmapped {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}

	return nil
}
