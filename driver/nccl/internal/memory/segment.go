package memory

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/cuda"
	"symmem/internal/ranked"
)

// Segment is an allocation of GPU memory that is mapped in both address ranges of an arena. CUDA
// frees the memory when both mappings have been removed.
type Segment struct {
	arena    *Arena
	offset   int64 // in both ranges of the arena
	bytes    int64
	UseCount UseCount // counts the graphs and windows that use the segment

	mu            ranked.Mutex[segmentMu] // guards the following fields
	isUnmapped    bool                    // Unmap has been called
	isSuspended   bool                    // Suspend has removed the mappings
	savedContents []byte                  // for Resume to restore, or nil
}

// Address returns the address in the first range.
func (s *Segment) Address() uintptr { return s.arena.base + uintptr(s.offset) }

// Bytes returns the segment's size.
func (s *Segment) Bytes() int64 { return s.bytes }

func (s *Segment) secondAddress() uintptr { return s.arena.secondBase + uintptr(s.offset) }

// allocateAndMap allocates memory, maps it at both addresses, and fills it with zeros. The CUDA
// context must be current.
func (s *Segment) allocateAndMap() error {
	m := s.arena.memory
	handle, err := s.allocate()
	if err != nil {
		return err
	}
	defer m.gpu.Release(handle) // the mappings keep the memory allocated
	if err := s.mapAt(s.Address(), handle); err != nil {
		return err
	}

	if err := s.mapAt(s.secondAddress(), handle); err != nil {
		unmapErr := m.gpu.CUDA.Unmap(s.Address(), s.bytes)
		return errors.Join(err, unmapErr)
	}

	if err := m.gpu.InternalStreams.Zero(m.gpu, s.Address(), s.bytes); err != nil {
		freeErr := s.free() // after the GPU has stopped writing zeros
		return errors.Join(err, freeErr)
	}

	return nil
}

func (s *Segment) allocate() (cuda.Handle, error) {
	m := s.arena.memory
	handle, err := m.gpu.CUDA.Create(s.bytes, m.gpu.SegmentProp)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = &driver.OutOfMemoryError{Requested: s.bytes, Cause: err}
	}

	return handle, err
}

// mapAt maps the memory at an address, for access by this GPU and its peer GPUs.
func (s *Segment) mapAt(address uintptr, handle cuda.Handle) error {
	m := s.arena.memory
	if err := m.gpu.CUDA.Map(address, s.bytes, handle); err != nil {
		return err
	}

	if err := m.gpu.CUDA.SetAccess(address, s.bytes, m.gpu.Accessors...); err != nil {
		unmapErr := m.gpu.CUDA.Unmap(address, s.bytes)
		return errors.Join(err, unmapErr)
	}

	return nil
}

// Keep does nothing, because the mappings keep the memory allocated.
func (s *Segment) Keep() error { return nil }

// Unmap frees the memory once UseCount has no users.
func (s *Segment) Unmap() error {
	_, reclaimErr := s.arena.memory.gpu.Reclaim() // frees what earlier calls could not free yet
	unmapErr := s.unmap()
	return errors.Join(reclaimErr, unmapErr)
}

func (s *Segment) unmap() error {
	if err := s.markUnmapped(); err != nil {
		return err
	}

	counts := &s.arena.memory.UseCounts
	dependsOn := &s.arena.useCount // must not free the segment's addresses before unmapUnused
	isDeferred := counts.DeferUntilUnused(&s.UseCount, dependsOn, s.unmapUnused)
	if isDeferred {
		return nil
	}

	return s.unmapUnused()
}

func (s *Segment) markUnmapped() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isUnmapped {
		return fmt.Errorf("unmapping a segment: %w", driver.ErrClosed)
	}

	s.isUnmapped = true
	return nil
}

// unmapUnused frees the memory, which must have no users. It may wait for other ranks, so the
// caller must not hold s.mu.
func (s *Segment) unmapUnused() error {
	m := s.arena.memory
	const isUnmapping = true
	releaseErr := m.releaseOnPeers(&s.UseCount, isUnmapping)
	m.remove(s)
	freeErr := s.free()
	return errors.Join(releaseErr, freeErr)
}

// free removes both mappings once no kernel can use the memory. It does nothing for a suspended
// segment, which has no mappings. The caller must hold s.mu unless s is new or isUnmapped is set.
func (s *Segment) free() error {
	g := s.arena.memory.gpu
	if s.isSuspended {
		return nil
	}

	return g.FreeWhenIdle(func() error { return g.Do(s.removeMappings) })
}

// removeMappings requires that the CUDA context is current.
func (s *Segment) removeMappings() error {
	g := s.arena.memory.gpu
	firstErr := g.CUDA.Unmap(s.Address(), s.bytes)
	secondErr := g.CUDA.Unmap(s.secondAddress(), s.bytes)
	return errors.Join(firstErr, secondErr)
}
