package binding

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"symmem"
	"symmem/internal/sys"
)

// closedRanks holds the Interop of each rank that was closed by force and still has live buffers.
// These buffers stay usable until they are freed.
type closedRanks struct {
	wasUsed atomic.Bool // an entry was added; never cleared

	mu       sync.Mutex       // not held during calls of an Interop, because they lock pools
	interops []symmem.Interop // each change creates a new slice; guarded by mu
}

// add adds a rank that will be closed, if it has live buffers.
func (c *closedRanks) add(interop symmem.Interop) {
	if !hasLiveBuffers(interop) {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	c.interops = append(slices.Clone(c.interops), interop)
	c.wasUsed.Store(true)
}

func hasLiveBuffers(interop symmem.Interop) bool {
	count, _ := interop.Live(nil) // nil means all pools
	return count > 0
}

func (c *closedRanks) all() []symmem.Interop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.interops
}

// freeBuffer frees the buffer at an address, if the buffer belongs to a closed rank.
func (c *closedRanks) freeBuffer(address uintptr) (isFound bool, err error) {
	for _, interop := range c.all() {
		buffer, err := interop.Retire(address) // Live no longer counts the buffer
		if err != nil {
			continue // the rank has no such buffer
		}

		if !hasLiveBuffers(interop) {
			c.remove(interop)
		}

		return true, buffer.Free()
	}

	return false, nil
}

func (c *closedRanks) remove(interop symmem.Interop) {
	isSame := func(other symmem.Interop) bool { return other == interop }
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interops = slices.DeleteFunc(slices.Clone(c.interops), isSame)
}

// checkNotFreed returns an error if memory belongs to a closed rank and was freed.
func (c *closedRanks) checkNotFreed(address uintptr, bytes int64) error {
	if !c.wasUsed.Load() {
		return nil
	}

	for _, interop := range c.all() {
		_, err := interop.Memory(address, bytes) // no error outside the rank's pools
		if err != nil {
			return err
		}
	}

	return nil
}

// unmappedSegments holds the addresses of segments that pools of any rank have unmapped.
type unmappedSegments struct {
	wasUsed atomic.Bool // an entry was added; never cleared

	mu     sync.Mutex     // innermost lock; acquired with a pool's lock held
	ranges []addressRange // oldest first; guarded by mu
}

type addressRange struct {
	start uintptr
	bytes int64
}

func (r addressRange) contains(address uintptr) bool {
	return address >= r.start && address-r.start < uintptr(r.bytes)
}

// maxUnmappedSegments limits unmappedSegments. A further entry replaces the oldest one.
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
	u.wasUsed.Store(true)
}

// checkMapped returns ErrFreed if an address in host memory is in an unmapped segment.
func (u *unmappedSegments) checkMapped(address uintptr) error {
	wasUnmapped := u.wasUsed.Load() && u.contains(address)
	if !wasUnmapped || sys.IsReadable(address) { // readable if it was mapped again
		return nil
	}

	return fmt.Errorf("memory at %#x: %w", address, symmem.ErrFreed)
}

func (u *unmappedSegments) contains(address uintptr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	containsAddress := func(r addressRange) bool { return r.contains(address) }
	return slices.ContainsFunc(u.ranges, containsAddress)
}
