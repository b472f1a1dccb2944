package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRanks holds ranks that were closed by force while they had live buffers. These buffers stay
// usable until they are freed.
type closedRanks struct {
	hasEntries atomic.Bool // never cleared; saves checkNotFreed a lock

	mu    sync.Mutex       // not held during calls of a rank's methods, which lock pools
	ranks []symmem.Interop // each change creates a new slice; guarded by mu
}

// add adds a rank that is about to be closed, if it has live buffers.
func (c *closedRanks) add(rank symmem.Interop) {
	if !hasLiveBuffers(rank) {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks = append(slices.Clone(c.ranks), rank)
	c.hasEntries.Store(true)
}

func hasLiveBuffers(rank symmem.Interop) bool {
	var allPools *symmem.Pool
	count, _ := rank.Live(allPools)
	return count > 0
}

func (c *closedRanks) all() []symmem.Interop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ranks
}

// freeBuffer frees the buffer at an address, if the buffer belongs to a closed rank.
func (c *closedRanks) freeBuffer(address uintptr) (isFound bool, err error) {
	for _, rank := range c.all() {
		buffer, err := rank.Retire(address) // the buffer is no longer live
		if err != nil {
			continue // the rank has no such buffer
		}

		if !hasLiveBuffers(rank) {
			c.remove(rank)
		}

		return true, buffer.Free()
	}

	return false, nil
}

func (c *closedRanks) remove(rank symmem.Interop) {
	isSame := func(other symmem.Interop) bool { return other == rank }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranks = slices.DeleteFunc(slices.Clone(c.ranks), isSame)
}

// checkNotFreed returns an error if memory belongs to a closed rank and was freed.
func (c *closedRanks) checkNotFreed(address uintptr, bytes int64) error {
	if !c.hasEntries.Load() {
		return nil
	}

	for _, rank := range c.all() {
		_, err := rank.Memory(address, bytes) // nil outside the rank's pools
		if err != nil {
			return err
		}
	}

	return nil
}

// unmappedSegments holds segments, the units in which pools map memory, that any rank has unmapped.
type unmappedSegments struct {
	hasEntries atomic.Bool // never cleared; saves checkMapped a lock

	mu     sync.Mutex     // acquired with a pool's lock held; acquire no lock inside it
	ranges []addressRange // oldest first; guarded by mu
}

type addressRange struct {
	start uintptr
	bytes int64
}

func (r addressRange) contains(address uintptr) bool {
	return address >= r.start && address-r.start < uintptr(r.bytes)
}

// maxUnmappedSegments limits unmappedSegments. A new entry then replaces the oldest one.
const maxUnmappedSegments = 1024

// add adds a segment. It replaces an entry with the same address.
func (u *unmappedSegments) add(e symmem.SegmentEvent) {
	u.mu.Lock()
	defer u.mu.Unlock()
	hasSameStart := func(r addressRange) bool { return r.start == e.Address }
	u.ranges = slices.DeleteFunc(u.ranges, hasSameStart)
	if len(u.ranges) == maxUnmappedSegments {
		u.ranges = slices.Delete(u.ranges, 0, 1)
	}

	u.ranges = append(u.ranges, addressRange{start: e.Address, bytes: e.Bytes})
	u.hasEntries.Store(true)
}

// checkMapped returns ErrFreed if an address in host memory is in an unmapped segment, and has not
// been mapped again.
func (u *unmappedSegments) checkMapped(address uintptr) error {
	isUnmapped := u.hasEntries.Load() && u.contains(address) && !sys.IsReadable(address)
	if isUnmapped {
		return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
	}

	return nil
}

func (u *unmappedSegments) contains(address uintptr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	containsAddress := func(r addressRange) bool { return r.contains(address) }
	return slices.ContainsFunc(u.ranges, containsAddress)
}
